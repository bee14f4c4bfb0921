"""A Unity Catalog volume as a store, on a real mount: what killed writers leave, and what is refused and how.

tests/cluster/test_stores.py runs the suite of all stores on it, and test_run_on_volume.py a whole job.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from harness.datasets import write_dataset
from sparkring.errors import CheckpointDamaged, CommitConflict, ConfigError, EnvironmentProblem, StorageError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.volume import VolumeStore
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import read_events
from sparkring.spark_jobs.chaos import chaos
from sparkring.spark_jobs.diagnosis.check import guarded
from sparkring.spark_jobs.diagnosis.storage import check_storage
from sparkring.spark_jobs.train import train
from tests.support import seams
from tests.support.faults import Faults
from tests.support.files_api import Flaw, files_api
from tests.support.training import train_config
from tests.support.versions import Writer, damage
from tests.support.volume_mount import ROOT

pytest_plugins = ["tests.support.places"]


@pytest.fixture
def here(volume: str) -> Iterator[str]:
    """A folder of the volume for one test."""
    name = uuid.uuid4().hex
    Path(volume, name).mkdir()
    yield f"{volume}/{name}"
    LocalStore(Path(volume)).delete(name)


@pytest.fixture
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on an executor: nothing leads to the Files API."""
    for name in [name for name in os.environ if name.startswith("DATABRICKS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # the client asks other clouds' tools, if there are any


@contextmanager
def _other_server(folder: Path, volume: str, *, flaw: Flaw = "none") -> Iterator[None]:
    """In the block, this process's environment leads to another Files API."""
    with files_api(folder, volume=volume, flaw=flaw) as environment, patch.dict(os.environ, environment):
        yield


def _die(in_act: str, folder: str) -> None:
    ended = subprocess.run([sys.executable, "-m", "tests.support.volume_deaths", in_act, folder], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL


def test_the_mount_offers_no_more_than_a_volume_s(here: str) -> None:
    file = Path(here, "file")
    file.write_bytes(b"first")
    for act, answers in ((os.rename, {errno.ENOSYS}), (os.symlink, {errno.ENOSYS}), (os.link, {errno.ENOSYS, errno.EPERM})):
        with pytest.raises(OSError, match="not") as refused:
            act(file, f"{here}/other")
        assert refused.value.errno in answers
    with file.open("rb") as opened:
        for lock in (fcntl.flock, fcntl.lockf):
            with pytest.raises(OSError, match="not implemented"):
                lock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    for mode in ("ab", "rb+"):
        with pytest.raises(OSError, match="not supported"):
            file.open(mode)
    with pytest.raises(OSError, match="not supported"), file.open("wb", buffering=0) as opened:
        opened.seek(3)
        opened.write(b"in the middle")
    with Path(here, "new").open("wb", buffering=0) as opened:
        opened.write(b"whole")
        assert [path.name for path in Path(here).iterdir()] == ["file"]
    assert Path(here, "new").read_bytes() == b"whole"
    with pytest.raises(OSError, match="not implemented"):  # so a store of plain local files cannot even put one
        LocalStore(Path(here)).put("other", b"x")


def test_a_mount_without_links_that_is_no_volume_is_refused_before_a_commit_and_at_one(here: str) -> None:
    store = LocalStore(Path(here))
    for act in (store.check_commits, lambda: store.put_if_absent("1.json", b"x")):
        with pytest.raises(EnvironmentProblem, match=f"{here} has no hard links .*; set workspace and dataset_url to"):
            act()
    assert list(store.tree("")) == []


def test_a_path_that_is_relative_to_a_folder_of_a_volume_opens_the_volume(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    store = open_store("runs/flights")
    assert isinstance(store, VolumeStore)
    assert store.url == f"{here}/runs/flights"


@pytest.mark.parametrize("form", ["{}", "file://{}", "dbfs:{}", "dbfs://{}", "{}/"])
def test_each_form_of_an_address_opens_the_same_volume(here: str, form: str) -> None:
    store = open_store(form.format(here))
    assert isinstance(store, VolumeStore)
    assert (store.url, store.path("a/b")) == (here, f"{here}/a/b")


def test_a_commit_stopped_at_any_act_leaves_whole_versions_only(here: str, tmp_path: Path) -> None:
    writer = Writer(write_dataset(tmp_path / "made", [[5, 3]], validation_rows=4))
    dataset = Dataset(here)
    writer.commit(here)  # a good one
    with Faults() as seen:
        writer.commit(here)
    assert set(seen.acts) == {"mkdir", "create", "write", "unlink", "rmdir"}
    for number, name in enumerate(seen.acts):
        before = dataset.versions()
        with Faults(at=number, how="dead") as faults, suppress(OSError):
            writer.commit(here)
        assert faults.struck, name
        after = dataset.versions()
        assert after in (before, [*before, before[-1] + 1]), name
        assert [damage(dataset, version) for version in after] == [None] * len(after), name


def test_a_killed_writer_leaves_a_part_under_the_final_name(here: str) -> None:
    _die("put", here)
    assert open_store(here).read("document.json") == b"01234"  # what the next two tests are about


def test_events_that_a_rank_has_settled_outlive_its_death_in_the_next_write(here: str) -> None:
    _die("events", f"{here}/once")
    assert [record["step"] for record in read_events(f"{here}/once")][:4] == [0, 1, 2, 3]
    _die("events_again", f"{here}/again")  # the control: the last file is written again, and cut off
    assert len(list(read_events(f"{here}/again"))) < 4


def test_a_checkpoint_whose_commit_was_cut_off_is_named_and_the_one_before_is_used(here: str) -> None:
    _die("checkpoint", here)
    found, damaged = Checkpoints(here).latest()
    assert found is not None
    assert (found.document.commit.steps, list(found.state)) == (4, [b"state"])
    assert [type(error) for error in damaged] == [CheckpointDamaged]


def test_a_rank_needs_no_token(here: str, no_token: None) -> None:
    store = open_store(here)
    store.put("a", b"first")
    store.move("a", "b/c")
    assert (store.read("b/c"), store.names("")) == (b"first", [])
    store.delete("b")
    assert list(store.tree("")) == []


def test_without_a_token_nothing_is_committed_and_no_rank_is_started(here: str, no_token: None, tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", [[30]], validation_rows=8)
    config = train_config(Path(here), dataset_url=str(tmp_path / "dataset"))
    for act in (open_store(here).check_commits, lambda: open_store(here).put_if_absent("1.json", b"x"), lambda: train(config)):
        with pytest.raises(EnvironmentProblem, match=r"needs a token .*; run this in a notebook or job of Databricks, or set") as refused:
            act()
        assert "\n" not in str(refused.value)
    assert list(open_store(here).tree("")) == []
    check = guarded("storage", lambda: check_storage(config))
    assert (check.status, "needs a token" in check.found, check.advice[:26]) == ("fail", True, "Run this in a notebook or ")
    check = check_storage(train_config(tmp_path, dataset_url=here))  # ranks only read the dataset
    assert (check.status, "prepare could not write" in check.found) == ("warn", True)


def test_a_document_that_the_mount_shows_late_is_waited_for(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = VolumeStore.size
    late = iter([None, None])
    monkeypatch.setattr(seams.VOLUME_STORE_SIZE, lambda store, name: next(late, shown(store, name)))
    store = open_store(here)
    store.check_commits()
    assert next(late, "asked twice") == "asked twice"
    late = iter([None, None])
    store.put_if_absent("1.json", b"x")
    assert next(late, "asked twice") == "asked twice"
    late = iter([None, None])
    with pytest.raises(CommitConflict):  # its caller reads what the other one wrote
        store.put_if_absent("1.json", b"y")
    assert next(late, "asked twice") == "asked twice"


def test_a_document_that_the_mount_never_shows_is_named(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(here)
    store.check_commits()
    monkeypatch.setattr(seams.VOLUME_SHOWN_S, 0.1)
    monkeypatch.setattr(seams.VOLUME_STORE_SIZE, lambda _store, _name: None)
    with pytest.raises(StorageError, match=r"1\.json is written, but the mount has not shown it for 0\.1 s; run the same command again"):
        store.put_if_absent("1.json", b"x")


def test_the_doctor_finds_that_a_second_writer_would_be_refused(here: str, tmp_path: Path) -> None:
    assert check_storage(train_config(Path(here), dataset_url=str(tmp_path))).status == "ok"
    assert list(open_store(here).tree("")) == []


def test_without_its_client_the_package_is_named(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "databricks.sdk", None)
    with pytest.raises(EnvironmentProblem, match=r"needs databricks-sdk, which is not installed; pip install 'sparkring\[volumes\]'"):
        open_store(here).check_commits()


def test_a_token_that_is_not_valid_is_named_with_its_host(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_TOKEN", "another")
    with pytest.raises(StorageError, match=r"no valid token.*; check that http://127\.0\.0\.1:\d+ can be reached, and that its token may"):
        open_store(here).check_commits()


@pytest.mark.parametrize("flaw", ["none", "no volume"])
def test_a_token_of_another_workspace_is_refused(here: str, volume: str, tmp_path: Path, flaw: Flaw) -> None:
    (tmp_path / "files").mkdir()
    with (_other_server(tmp_path / "files", volume, flaw=flaw),
          pytest.raises(EnvironmentProblem, match=r"does not write into .* as it is mounted here; set DATABRICKS_HOST")):
        open_store(here).check_commits()


def test_a_server_that_overwrites_is_refused(here: str, mounted: tuple[str, Path]) -> None:
    volume, files = mounted
    with (_other_server(files, volume, flaw="overwrites"),
          pytest.raises(EnvironmentProblem, match="ignores overwrite=false: two writers could both commit")):
        open_store(here).put_if_absent("versions/1.json", b"x")
    assert list(open_store(here).tree("")) == []


@pytest.mark.parametrize("flaw", ["lost requests", "lost answers"])
def test_a_commit_that_is_not_answered_is_repeated_and_recognised_as_one_s_own(here: str, mounted: tuple[str, Path], flaw: Flaw) -> None:
    volume, files = mounted
    with _other_server(files, volume, flaw=flaw):
        store = open_store(here)
        store.put_if_absent("versions/1.json", b"mine")
        with pytest.raises(CommitConflict, match="committed by another writer first"):
            store.put_if_absent("versions/1.json", b"theirs")
    assert store.read("versions/1.json") == b"mine"


@pytest.mark.parametrize(("path", "message"), [
    ("/Volumes/main/default", "names no volume; give /Volumes/<catalog>/<schema>/<volume>"),
    ("dbfs:/Volumes/a/b/c/../../d/e", "leads out of")])
def test_an_address_that_is_no_volume_s_is_refused(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store(path)


def test_a_volume_that_is_not_mounted_is_not_made_on_this_machine_s_disk(volume: str) -> None:
    elsewhere = f"/Volumes/none_{uuid.uuid4().hex}/default/tests"
    for act in (open_store(elsewhere).check_commits, lambda: open_store(elsewhere).put("a", b"x")):
        with pytest.raises(ConfigError, match="is not mounted here; check its name"):
            act()
    assert not Path(elsewhere).exists()


def test_faults_on_purpose_are_refused_since_ranks_would_need_a_token(here: str) -> None:
    with pytest.raises(ConfigError, match=r"is a volume, .*; set workspace to a folder"):
        chaos(train_config(Path(here)))
