"""The one atomic act: a document appears whole or not at all, and the first writer wins."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.datasets import write_dataset
from sparkring.errors import CommitConflict, ConfigError, DatasetError, DatasetVersionNotFound, StorageError
from sparkring.pipelines.data.dataset.manifest import parse_manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores import local as local_store
from sparkring.pipelines.data.stores.base import numbered
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.pipelines.data.stores.open import open_store
from tests.support import seams


def test_the_second_commit_of_a_name_is_a_conflict_and_changes_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put_if_absent("versions/1.json", b"first")
    with pytest.raises(CommitConflict, match="committed by another writer first"):
        store.put_if_absent("versions/1.json", b"second")
    assert store.read("versions/1.json") == b"first"
    assert [path.name for path in (tmp_path / "versions").iterdir()] == ["1.json"]


def test_of_many_writers_at_once_exactly_one_wins(tmp_path: Path) -> None:
    store, won = open_store(str(tmp_path)), []

    def write(number: int) -> None:
        try:
            store.put_if_absent("versions/1.json", str(number).encode())
        except CommitConflict:
            return
        won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert [str(number).encode() for number in won] == [store.read("versions/1.json")]


def test_a_writer_that_dies_before_the_commit_leaves_nothing_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))

    def die(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "link", die)
    with pytest.raises(OSError, match="no space"):
        store.put_if_absent("versions/1.json", b"half")
    assert numbered(store, "versions") == []


def test_what_is_large_goes_to_the_disk_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small its pieces."""
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(seams.LOCAL_BEGIN_WRITEBACK, lambda _, *, start, length: begun.append((start, length)))
    pieces = [bytes([number]) * (local_store.BITE_BYTES // 2 + number) for number in range(7)] + [b"7" * 3 * local_store.BITE_BYTES]
    LocalStore(tmp_path).put_pieces("large", pieces)
    assert (tmp_path / "large").read_bytes() == b"".join(pieces)
    assert sum(length for _, length in begun) > sum(map(len, pieces)) - local_store.BITE_BYTES
    assert all(one[0] + one[1] == other[0] for one, other in itertools.pairwise(begun))
    assert all(length < 2 * local_store.BITE_BYTES for _, length in begun)


def test_names_may_not_lead_out_of_the_store(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "inside")
    for name in ("../outside", "/etc/passwd", "data/../../outside"):
        with pytest.raises(ConfigError, match="leads out of"):
            store.path(name)


@pytest.mark.parametrize("act", [
    lambda store: store.put("data/new", b""), lambda store: store.put_if_absent("data/new", b""),
    lambda store: store.move("own", "data/new"), lambda store: store.move("data/kept", "own"),
    lambda store: store.upload(Path(__file__), "data/new"), lambda store: store.delete("data/kept"), lambda store: list(store.tree("data")),
    lambda store: store.names("data"), lambda store: store.size("data/kept"),
    lambda store: store.read("data/kept"), lambda store: store.lock("data/lock", busy="").__enter__(),
], ids=["put", "put if absent", "move in", "move out", "upload", "delete", "tree", "names", "size", "read", "lock"])
def test_nothing_is_done_behind_a_link_that_leads_out(tmp_path: Path, act: Callable[[LocalStore], object]) -> None:
    store, elsewhere = LocalStore(tmp_path / "store"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_bytes(b"precious")
    store.put("own", b"")
    (tmp_path / "store/data").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=r"is a link that leads out of .*, or lies behind one"):
        act(store)
    assert [path.name for path in elsewhere.iterdir()] == ["kept"]
    assert (elsewhere / "kept").read_bytes() == b"precious"
    (tmp_path / "store/data").unlink()  # the control: so it does where the link stays inside
    (tmp_path / "store/really").mkdir()
    (tmp_path / "store/really/kept").write_bytes(b"")
    (tmp_path / "store/data").symlink_to(tmp_path / "store/really")
    act(store)


def test_a_link_is_removed_or_replaced_itself_and_is_no_lock(tmp_path: Path) -> None:
    store, elsewhere = LocalStore(tmp_path / "store"), tmp_path / "elsewhere"
    store.put("own", b"")
    elsewhere.mkdir()
    (elsewhere / "kept").write_bytes(b"precious")
    for name, target in (("folder", elsewhere), ("file", elsewhere / "kept"), ("lock", elsewhere / "kept")):
        (tmp_path / "store" / name).symlink_to(target)
    with pytest.raises(ConfigError, match="lock is a link; remove it"), store.lock("lock", busy=""):
        pass
    store.delete("folder")
    store.put("file", b"new")
    assert store.read("file") == b"new"
    assert (elsewhere / "kept").read_bytes() == b"precious"


def test_numbered_documents_are_sorted_as_numbers(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    for name in ("10.json", "9.json", "x.json", "9.json.part", "1.jsonl"):
        store.put(f"versions/{name}", b"{}")
    assert numbered(store, "versions") == [9, 10]


def test_a_store_does_not_delete_itself(tmp_path: Path) -> None:
    for name in ("", "."):
        with pytest.raises(ConfigError, match="itself, which is never deleted"):
            open_store(str(tmp_path)).delete(name)


def test_one_process_at_a_time_is_inside_a_lock(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with store.lock(".lock", busy="taken"), pytest.raises(CommitConflict, match="taken"), store.lock(".lock", busy="taken"):
        pass
    with store.lock(".lock", busy="taken"):
        assert (tmp_path / ".lock").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot make the folder"):
        open_store(str(tmp_path / "file/inside")).put("a.json", b"")
    assert numbered(open_store(str(tmp_path / "file")), "versions") == []


@pytest.mark.parametrize("look", [
    pytest.param(lambda store: store.read("versions/1.json"), id="read"),
    pytest.param(lambda store: store.size("versions/1.json"), id="size"),
    pytest.param(lambda store: store.names("versions"), id="names")])
def test_a_file_that_may_not_be_read_is_named(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[LocalStore], object]) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(StorageError, match=r"versions.* cannot be read: Permission denied; get the right"):
        look(LocalStore(tmp_path))


def test_an_unknown_scheme_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="gopher:"):
        open_store("gopher://somewhere/data")


def test_a_dataset_tells_which_versions_there_are(tmp_path: Path) -> None:
    dataset = Dataset(str(tmp_path / "none"))
    with pytest.raises(DatasetVersionNotFound, match="has no committed version"):
        dataset.manifest()
    written = write_dataset(tmp_path / "one", [[10]])
    assert written.versions() == [1]
    with pytest.raises(DatasetVersionNotFound, match="has no version 7, it has 1"):
        written.manifest(7)


def test_a_manifest_survives_the_way_through_its_document(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, [[10, 3], [5]]).manifest()
    assert parse_manifest(manifest.to_json(), origin="here") == manifest
    assert manifest.splits["train"].files[0].rows == 13


def test_a_damaged_manifest_is_refused_by_name(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, [[10]]).manifest().to_json()
    for damaged in (data[:-20], data.replace(b'"rows": 10', b'"rows": "many"'), b"[]"):
        with pytest.raises(DatasetError, match=r"versions/1\.json is not a manifest of format 1"):
            parse_manifest(damaged, origin="versions/1.json")
