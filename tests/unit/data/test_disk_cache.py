"""Local copies of remote files: fetched once, never more than the limit, the same rows."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from harness.datasets import write_dataset
from sparkring.errors import ConfigError, DatasetError, StorageError
from sparkring.pipelines.data.dataset.manifest import DataFile
from sparkring.pipelines.data.loading.disk_cache import MB, DiskCache
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.stores.base import Readable
from sparkring.pipelines.data.stores.local import LocalStore


class _Counting:
    """A store that counts what is opened."""

    def __init__(self, store: Readable) -> None:
        self._store, self.url, self.opened = store, store.url, list[str]()

    def path(self, name: str) -> str:
        return self._store.path(name)

    def size(self, name: str) -> int | None:
        return self._store.size(name)

    def open_input(self, name: str) -> pa.NativeFile:
        self.opened.append(name)
        return self._store.open_input(name)


def _files(folder: Path, count: int, *, size: int) -> _Counting:
    folder.mkdir()
    for number in range(count):
        (folder / f"file-{number}").write_bytes(bytes([number]) * size)
    return _Counting(LocalStore(folder))


def _cache(store: _Counting, folder: Path, *, limit_mb: float) -> DiskCache:
    """A cache of all files that the store has now."""
    return DiskCache(store, folder, files=_described(store), limit_mb=limit_mb)


def _described(store: _Counting) -> list[DataFile]:
    """What a manifest would say about them."""
    root = Path(store.path(""))
    return [DataFile(path=path.name, bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), row_groups=(),
                     row_group_bytes=()) for path in root.iterdir()]


def _copies(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def test_a_file_is_fetched_once_however_many_threads_want_it(tmp_path: Path) -> None:
    store = _files(tmp_path / "store", 2, size=1000)
    caches = [_cache(store, tmp_path / "cache", limit_mb=1) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda number: caches[number % 4].open_input(f"file-{number % 2}").read(), range(40)))
    assert read == [bytes([number % 2]) * 1000 for number in range(40)]
    assert sorted(store.opened) == ["file-0", "file-1"]


def test_the_longest_unused_copies_go_when_the_limit_is_reached(tmp_path: Path) -> None:
    store = _files(tmp_path / "store", 5, size=MB // 2)
    cache = _cache(store, tmp_path / "cache", limit_mb=1.5)
    for number in (0, 1, 2):
        cache.open_input(f"file-{number}").close()
    for age, copy in enumerate(sorted(_copies(tmp_path / "cache"), key=lambda path: path.read_bytes()[0])):
        os.utime(copy, (age, age))
    cache.open_input("file-0").close()  # used again: file-1 is now the longest unused
    held = cache.open_input("file-3")
    assert sorted(path.read_bytes()[0] for path in _copies(tmp_path / "cache")) == [0, 2, 3]
    cache.open_input("file-4").close()
    assert held.read() == bytes([3]) * (MB // 2)  # what is open stays readable
    assert sum(path.stat().st_size for path in _copies(tmp_path / "cache")) <= 1.5 * MB


def test_a_file_beyond_the_limit_is_read_where_it_lies_and_a_missing_one_is_missed(tmp_path: Path) -> None:
    store = _files(tmp_path / "store", 1, size=MB)
    cache = _cache(store, tmp_path / "cache", limit_mb=0.5)
    assert cache.open_input("file-0").read() == bytes([0]) * MB
    assert _copies(tmp_path / "cache") == []
    with pytest.raises(FileNotFoundError):
        cache.open_input("file-1")


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(ConfigError, match=r"set train\.cache_folder to a folder of your own"):
        _cache(_files(tmp_path / "store", 1, size=1), tmp_path / "cache", limit_mb=1)


def test_a_folder_that_cannot_be_made_is_a_config_error_that_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, reason in ((tmp_path / "file", "File exists"), (tmp_path / "file/cache", "Not a directory")):
        with pytest.raises(ConfigError, match=rf"{folder} .* cannot be made \({reason}\); set train\.cache_folder"):
            DiskCache(LocalStore(tmp_path), folder, files=(), limit_mb=1)


def test_while_a_copy_cannot_be_written_the_file_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _files(tmp_path / "store", 1, size=1000)
    cache = _cache(store, tmp_path / "cache", limit_mb=1)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert cache.open_input("file-0").read() == bytes(1000)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]
    assert cache.open_input("file-0").read() == bytes(1000)
    assert len(_copies(tmp_path / "cache")) == 1


def test_a_file_that_the_disk_has_no_room_for_is_not_fetched_for_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _files(tmp_path / "store", 1, size=1000)
    cache = _cache(store, tmp_path / "cache", limit_mb=1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=999))
    assert cache.open_input("file-0").read() == bytes(1000)
    assert (store.opened, _copies(tmp_path / "cache")) == (["file-0"], [])


@pytest.mark.parametrize("error", [StorageError("503"), FileNotFoundError(errno.ENOENT, "gone")], ids=repr)
def test_an_error_of_the_store_is_the_store_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    store = _files(tmp_path / "store", 1, size=1000)
    cache = _cache(store, tmp_path / "cache", limit_mb=1)

    def away(_: str) -> pa.NativeFile:
        raise error

    monkeypatch.setattr(store, "open_input", away)
    with pytest.raises(type(error), match=str(error.args[-1])):
        cache.open_input("file-0")


def test_a_folder_that_is_a_link_is_refused_and_what_is_no_copy_stays(tmp_path: Path) -> None:
    store, home = _files(tmp_path / "store", 3, size=MB), tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "thesis.txt").write_text("years of work")
    (home / "notes.part").write_text("more")
    os.utime(home / "notes.part", (0, 0))
    (tmp_path / "planted").symlink_to(home)
    with pytest.raises(ConfigError, match="is a link"):
        _cache(store, tmp_path / "planted", limit_mb=1)
    cache = _cache(store, home, limit_mb=1)
    for number in range(3):
        cache.open_input(f"file-{number}").close()
    assert len([path for path in _copies(home) if len(path.name) == 64]) == 1, "room was made"
    assert {"thesis.txt", "notes.part"} <= {path.name for path in home.iterdir()}


def test_a_copy_that_was_never_finished_is_not_read_and_goes(tmp_path: Path) -> None:
    store = _files(tmp_path / "store", 1, size=10)
    cache = _cache(store, tmp_path / "cache", limit_mb=1)
    left = tmp_path / f"cache/.{'a' * 64}.{'b' * 32}.part"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert cache.open_input("file-0").read() == bytes(10)
    assert not left.exists()


def test_a_second_epoch_reads_no_byte_of_the_store(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", [[100, 50], [70]])
    manifest, store = dataset.manifest(), _Counting(dataset.store)

    def rows(through: Readable) -> list[int]:
        loader = Loader(SplitReader(through, manifest, "train"), LoaderConfig(batch_rows=32, seed=1, lanes=4), rank=0, num_ranks=1)
        return [int(row) for batch in loader.epoch(0) for row in batch.tensors["row_id"]]

    cache = DiskCache(store, tmp_path / "cache", files=manifest.splits["train"].files, limit_mb=10)
    first = rows(cache)
    fetched = len(store.opened)
    assert rows(cache) == first
    assert (fetched, len(store.opened)) == (2, 2)
    assert rows(store) == first
    assert len(store.opened) > fetched  # the control: without a cache it is opened again


def test_a_file_that_was_rewritten_under_its_old_name_is_another_copy(tmp_path: Path) -> None:
    store = _files(tmp_path / "store", 1, size=1000)
    assert _cache(store, tmp_path / "cache", limit_mb=1).open_input("file-0").read() == bytes(1000)
    (tmp_path / "store/file-0").write_bytes(bytes([7]) * 1000)  # as large as it was, and adopted anew
    assert _cache(store, tmp_path / "cache", limit_mb=1).open_input("file-0").read() == bytes([7]) * 1000
    assert store.opened == ["file-0", "file-0"]


def test_what_the_manifest_does_not_name_is_never_kept(tmp_path: Path) -> None:
    store = _files(tmp_path / "store", 2, size=1000)
    cache = DiskCache(store, tmp_path / "cache", files=_described(store)[:1], limit_mb=1)
    (known,), unknown = _described(store)[:1], _described(store)[1].path
    assert len(cache.open_input(unknown).read()) == 1000  # no part of the version: read where it lies
    (tmp_path / "store" / known.path).write_bytes(b"x" * 1000)
    with pytest.raises(DatasetError, match=rf"{known.path} has SHA-256 \w+, the manifest says {known.sha256}; the file changed after"):
        cache.open_input(known.path)
    assert [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == []


def test_a_copy_of_which_a_part_was_lost_is_fetched_again(tmp_path: Path) -> None:
    store = _files(tmp_path / "store", 1, size=1000)
    cache = _cache(store, tmp_path / "cache", limit_mb=1)
    cache.open_input("file-0").close()
    os.truncate(_copies(tmp_path / "cache")[0], 600)
    assert cache.open_input("file-0").read() == bytes(1000)
    assert cache.open_input("file-0").read() == bytes(1000)
    assert store.opened == ["file-0", "file-0"]


def test_a_copy_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    flush, rename = os.fsync, Path.replace

    def fsync(handle: int) -> None:
        done.append(f"flush {os.fstat(handle).st_size}")
        flush(handle)

    def replace(path: Path, target: Path) -> Path:
        done.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    _cache(_files(tmp_path / "store", 1, size=1000), tmp_path / "cache", limit_mb=1).open_input("file-0").close()
    assert done == ["flush 1000", "rename"]


def test_what_another_rank_renames_while_room_is_made_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _files(tmp_path / "store", 1, size=10)
    cache = _cache(store, tmp_path / "cache", limit_mb=1)
    theirs = tmp_path / "cache/.theirs.part"
    theirs.write_bytes(b"half")
    listed, looked = os.scandir, list[int]()

    def scandir(folder: Path) -> Iterator[os.DirEntry[str]]:
        entries = list(listed(folder))
        theirs.rename(tmp_path / "cache/theirs")
        looked.append(len(entries))
        return iter(entries)

    monkeypatch.setattr(os, "scandir", scandir)
    assert cache.open_input("file-0").read() == bytes(10)
    assert len(looked) == 1


@pytest.mark.parametrize(("times", "fetched"), [(1, 2), (9, 3)])
def test_a_copy_that_another_rank_removes_at_once_is_fetched_again_or_read_where_it_lies(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, fetched: int) -> None:
    store = _files(tmp_path / "store", 1, size=10)
    cache = _cache(store, tmp_path / "cache", limit_mb=1)
    touch, removed = os.utime, list[Path]()

    def utime(path: Path) -> None:
        if len(removed) < times and path.exists():
            path.unlink()
            removed.append(path)
        touch(path)

    monkeypatch.setattr(os, "utime", utime)
    assert cache.open_input("file-0").read() == bytes(10)
    assert store.opened == ["file-0"] * fetched


def test_ranks_that_crowd_each_other_out_all_read_what_they_should(tmp_path: Path) -> None:
    store = _files(tmp_path / "store", 6, size=MB // 4)
    caches = [_cache(store, tmp_path / "cache", limit_mb=0.3) for _ in range(6)]  # room for one copy
    with ThreadPoolExecutor(6) as pool:
        read = pool.map(lambda number: caches[number % 6].open_input(f"file-{number * 5 % 6}").read()[0], range(120))
        assert list(read) == [number * 5 % 6 for number in range(120)]
