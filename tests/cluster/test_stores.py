"""What every kind of store promises, tried on all of them: local disk, S3, HDFS, and memory by fsspec."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from harness.datasets import write_dataset
from sparkring.errors import CommitConflict, ConfigError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.base import numbered
from sparkring.pipelines.data.stores.open import open_store
from tests.support.versions import Writer, damage

pytest_plugins = ["tests.support.places"]


def test_what_is_put_is_read(place: str) -> None:
    store = open_store(place)
    assert store.names("a") == []
    assert store.size("a/b/c") is None
    for data in (b"first", b"", b"second, longer"):
        store.put("a/b/c", data)
        assert store.read("a/b/c") == data
        assert store.size("a/b/c") == len(data)
    store.put("a/d", b"x")
    assert (store.names("a/b"), store.names("a"), store.names("")) == (["c"], ["d"], [])
    with pytest.raises(FileNotFoundError):
        store.read("a/none")
    with pytest.raises(FileNotFoundError):
        store.open_input("a/none").read()


def test_a_tree_is_all_files_below_a_folder_with_their_sizes_and_times(place: str) -> None:
    store, began = open_store(place), time.time()
    for name in ("a/b/c", "a/b/d/e", "a/f", "ab/g", "h"):
        store.put(name, name.encode())
    found = list(store.tree("a"))
    assert {entry.name: entry.bytes for entry in found if not entry.is_folder} == {"a/b/c": 5, "a/b/d/e": 7, "a/f": 3}
    assert {entry.name for entry in found if entry.is_folder} <= {"a/b", "a/b/d"}
    for entry in found:
        assert began - 5 < entry.changed < time.time() + 5  # one machine, one clock; S3 tells whole seconds
    assert list(store.tree("none")) == []
    assert {entry.name for entry in store.tree("") if not entry.is_folder} == {"a/b/c", "a/b/d/e", "a/f", "ab/g", "h"}


def test_a_file_is_read_at_any_place(place: str, tmp_path: Path) -> None:
    store, data = open_store(place), bytes(range(256)) * 8192
    (tmp_path / "file").write_bytes(data)
    store.upload(tmp_path / "file", "up/loaded")
    with store.open_input("up/loaded") as opened:
        assert opened.size() == len(data)
        opened.seek(1_000_003)
        assert opened.read(70_000) == data[1_000_003:1_070_003]
        opened.seek(len(data) - 8)
        assert opened.read() == data[-8:]
        opened.seek(0)
        assert opened.read() == data


def test_of_one_name_the_first_put_if_absent_wins(place: str) -> None:
    store = open_store(place)
    store.put_if_absent("versions/1.json", b"first")
    with pytest.raises(CommitConflict, match="committed by another writer first"):
        store.put_if_absent("versions/1.json", b"second")
    assert store.read("versions/1.json") == b"first"
    assert store.names("versions") == ["1.json"]
    assert numbered(store, "versions") == [1]


def test_of_many_writers_at_once_exactly_one_wins(place: str) -> None:
    start, won = threading.Barrier(8), []

    def write(number: int) -> None:
        store = open_store(place)  # each its own client, as in processes of their own
        start.wait(20)
        try:
            store.put_if_absent("versions/1.json", str(number).encode())
        except CommitConflict:
            return
        won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [str(number).encode() for number in won] == [open_store(place).read("versions/1.json")]
    assert open_store(place).names("versions") == ["1.json"]


def test_a_file_moves_with_its_bytes_and_replaces(place: str) -> None:
    store = open_store(place)
    store.put("new/x=1/part", b"moved")
    store.put("final/part", b"before")
    store.move("new/x=1/part", "final/part")
    assert (store.read("final/part"), store.size("new/x=1/part")) == (b"moved", None)
    store.move("final/part", "elsewhere/deep/part")
    assert store.names("elsewhere/deep") == ["part"]


def test_a_folder_goes_with_all_it_holds_and_nothing_else(place: str) -> None:
    store = open_store(place)
    for name in ("data/1/a", "data/1/b/c", "data/10/a", "data/1x"):
        store.put(name, b"x")
    store.delete("data/1")
    store.delete("data/never")
    assert store.size("data/1/a") is None
    assert store.size("data/1/b/c") is None
    assert (store.names("data"), store.names("data/10")) == (["1x"], ["a"])
    store.delete("data/1x")
    assert store.names("data") == []
    for name in ("", ".", "/", "../data", "data/../.."):
        with pytest.raises(ConfigError):
            store.delete(name)


def test_a_lock_is_kept_or_refused(place: str, kind_and_url: tuple[str, str]) -> None:
    store = open_store(place)
    if kind_and_url[0] == "memory":  # other processes would not see it
        with pytest.raises(ConfigError, match=r"cannot be locked.*set workspace to a local or mounted"), store.lock(".lock", busy=""):
            pass
        return
    for _ in range(2):  # and is free again at once
        with store.lock(".lock", busy="taken"), pytest.raises(CommitConflict, match="taken"), open_store(place).lock(".lock", busy="taken"):
            pass


def test_a_file_in_pieces_is_stored_as_one(place: str) -> None:
    store, data = open_store(place), bytes(range(256)) * 40_000  # more than one part of an upload to S3 holds
    store.put_pieces("large", [data[:100], memoryview(data)[100:9_000_000], b"", data[9_000_000:]])
    assert store.read("large") == data
    store.put_pieces("large", [b"small"])
    assert store.read("large") == b"small"


def test_a_version_is_committed_and_read_back(place: str, tmp_path: Path) -> None:
    writer = Writer(write_dataset(tmp_path / "made", [[300, 40], [0, 25]]), staging=tmp_path / "staging")
    first, second = writer.commit(place), writer.commit(place)
    dataset = Dataset(place)
    assert dataset.versions() == [1, 2]
    assert (dataset.manifest(1), dataset.manifest()) == (first, second)
    assert (damage(dataset, 1), damage(dataset, 2)) == (None, None)
    dataset.store.delete(second.splits["train"].files[0].path)  # the control: damage is seen on this kind of store, too
    assert damage(dataset, 2) is not None
    assert damage(dataset, 1) is None


def test_of_two_versions_at_once_one_is_committed_and_the_other_leaves_nothing(place: str, tmp_path: Path) -> None:
    made = [write_dataset(tmp_path / f"made-{seed}", [[50], [20]], seed=seed) for seed in (0, 1)]
    together = threading.Barrier(2)
    written: list[Manifest] = []
    conflicts: list[CommitConflict] = []

    class Meeting(Writer):
        def manifest(self, *known: object) -> Manifest:
            manifest = super().manifest(*known)  # type: ignore[arg-type]
            written.append(manifest)
            together.wait(60)  # both have chosen the same number
            return manifest

    def run(number: int) -> None:
        try:
            Meeting(made[number], staging=tmp_path / f"staging-{number}").commit(place)
        except CommitConflict as error:
            conflicts.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    dataset = Dataset(place)
    assert dataset.versions() == [1]
    assert damage(dataset, 1) is None
    assert (len(written), len(conflicts)) == (2, 1)
    (lost,) = (manifest for manifest in written if manifest.data_id != dataset.manifest(1).data_id)
    for split in lost.splits.values():
        assert [dataset.store.size(file.path) for file in split.files] == [None] * len(split.files)
