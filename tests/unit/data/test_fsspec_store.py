"""Stores of fsspec's file systems: what may commit and what may only be read, and what is said where something is lacking.

``memory:`` also runs the suite of all stores, tests/cluster/test_stores.py.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from harness.datasets import write_dataset
from sparkring.errors import CommitConflict, ConfigError, EnvironmentProblem, StorageError
from sparkring.pipelines.data.dataset.integrity import check_footers, verify_files
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.stores.open import open_store
from tests.support.http_folder import http_folder


def _memory() -> str:
    return f"memory://{uuid.uuid4().hex}/data"


def _rows(dataset: Dataset) -> list[int]:
    reader = SplitReader(dataset.store, dataset.manifest(), "train")
    batches = Loader(reader, LoaderConfig(batch_rows=64, seed=1, lanes=4), rank=0, num_ranks=1).epoch(0)
    return sorted(int(row) for batch in batches for row in batch.tensors["row_id"])


@pytest.mark.parametrize(("url", "kind", "message"), [
    pytest.param("gss://bucket/x", ConfigError, r"fsspec does not know gss: addresses; did you mean 'gs'\?", id="no such protocol"),
    pytest.param("sftp://host/x", EnvironmentProblem, 'sftp: addresses need a package that is not installed; install it: .*"paramiko"',
                 id="no package of fsspec's list"),
    pytest.param("sftp://me:secret@host/x", ConfigError, "takes neither a password nor a chain", id="a password"),
    pytest.param("simplecache::memory://x", ConfigError, "takes neither a password nor a chain", id="a cache that would hide commits")])
def test_an_address_that_cannot_be_used_is_told_in_one_line(url: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as raised:
        open_store(url)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(("url", "extra"), [("gs://bucket/x", "gs"), ("abfs://container/x", "abfs"), ("http://host/x", "http")])
def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, url: str, extra: str) -> None:
    for module in ("gcsfs", "adlfs", "fsspec.implementations.http"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, url.partition(":")[0], raising=False)
    with pytest.raises(EnvironmentProblem, match=rf"a package that is not installed; install it: pip install 'sparkring\[{extra}\]'"):
        open_store(url)


def test_without_a_create_that_fails_nothing_is_committed_unless_there_is_one_writer(tmp_path: Path) -> None:
    url = f"local://{tmp_path}/store"
    open_store(url).put("data/a", b"a file that no document names")
    careful, trusting = open_store(url), open_store(url, one_writer=True)
    for refused in (careful.check_commits, lambda: careful.put_if_absent("versions/1.json", b"1")):
        with pytest.raises(ConfigError, match=r"local: addresses cannot refuse a second writer .*; .* or set dataset_one_writer=true"):
            refused()
    assert careful.names("versions") == []
    trusting.check_commits()
    trusting.put_if_absent("versions/1.json", b"1")
    with pytest.raises(CommitConflict, match="committed by another writer first"):
        trusting.put_if_absent("versions/1.json", b"2")
    assert (careful.read("versions/1.json"), careful.read("data/a")) == (b"1", b"a file that no document names")  # reading always works


def test_files_of_one_writer_appear_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"local://{tmp_path}/store", one_writer=True)
    store.put("a/b", b"before")

    def stop(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(LocalFileSystem, "mv", stop)
    (tmp_path / "file").write_bytes(b"after")
    acts: list[Callable[[], None]] = [lambda: store.put("a/b", b"after"), lambda: store.upload(tmp_path / "file", "a/b"),
                                      lambda: store.put_if_absent("a/c", b"after")]
    for act in acts:
        with pytest.raises(StorageError, match="no space left on device"):
            act()
    assert (store.read("a/b"), store.names("a")) == (b"before", ["b"])
    monkeypatch.undo()
    store.upload(tmp_path / "file", "a/b")
    assert (store.read("a/b"), store.names("a")) == (b"after", ["b"])


def test_a_create_that_overwrites_all_the_same_is_refused_before_the_first_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    url, piped = _memory(), MemoryFileSystem.pipe_file
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda self, path, value, **_: piped(self, path, value))  # an old package, say
    with pytest.raises(EnvironmentProblem, match=r"a second create of one name overwrote the first at memory://.*: two writers could both"):
        open_store(url).check_commits()
    assert list(open_store(url).tree("")) == []
    monkeypatch.undo()
    open_store(url).check_commits()  # the control
    assert list(open_store(url).tree("")) == []


@pytest.fixture(scope="module", params=[True, False], ids=["ranges", "no ranges"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dataset, str]]:
    """A dataset, and the address at which an HTTP server has it."""
    folder = tmp_path_factory.mktemp("served")
    dataset = write_dataset(folder / "a dataset", [[300, 40], [7, 25]])
    with http_folder(folder, ranges=request.param) as url:
        yield dataset, f"{url}/a dataset"


def test_a_dataset_is_read_over_http_row_for_row(served: tuple[Dataset, str]) -> None:
    local, url = served
    remote = Dataset(url)
    assert remote.versions() == [1]
    manifest = remote.manifest()
    assert manifest == local.manifest()
    assert _rows(remote) == _rows(local)
    assert verify_files(remote.store, manifest) == check_footers(remote.store, manifest, manifest.splits["train"].files) == []
    assert remote.store.size("versions/2.json") is None
    with pytest.raises(FileNotFoundError):
        remote.store.read("versions/2.json")


@pytest.mark.parametrize("one_writer", [False, True])
def test_nothing_is_written_over_http(served: tuple[Dataset, str], one_writer: bool) -> None:
    local, url = served
    remote = Dataset(url, one_writer=one_writer)
    with pytest.raises(ConfigError, match="http: addresses are read-only"):
        remote.commit(local.manifest().model_copy(update={"version": 2}))
    assert Dataset(url).versions() == [1]


def test_a_server_that_does_not_answer_is_told_in_one_line() -> None:
    with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:1/x/versions: .*; check the address") as raised:
        Dataset("http://127.0.0.1:1/x").versions()
    assert "\n" not in str(raised.value)
