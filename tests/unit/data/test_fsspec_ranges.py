"""Ranged reads of a file that is read over a network: the right bytes, by few requests, and one kind of error."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from sparkring.errors import StorageError
from sparkring.pipelines.data.stores.ranges import AHEAD_BYTES, Ranges
from tests.support import seams

DATA = random.Random(0).randbytes(3 * AHEAD_BYTES + 12_345)


class Counted:
    """fsspec's own file system in memory, which notes the ranges that are asked for, and may fail."""

    def __init__(self) -> None:
        self._fs = fsspec.filesystem("memory")
        self.path = f"/{uuid.uuid4().hex}"
        self._fs.pipe_file(self.path, DATA)
        self.asked: list[tuple[int, int]] = []
        self.error: Exception | None = None

    def info(self, path: str) -> Any:
        """As there."""
        return self._fs.info(path)

    def cat_file(self, path: str, *, start: int, end: int) -> bytes:
        """As there."""
        self.asked.append((start, end))
        if self.error:
            raise self.error
        data: bytes = self._fs.cat_file(path, start=start, end=end)
        return data

    def remove(self) -> None:
        """All memory: addresses of a process share one memory."""
        self._fs.rm(self.path)


@pytest.fixture
def counted() -> Iterator[Counted]:
    made = Counted()
    yield made
    made.remove()


def _read(file: Ranges, start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)


def test_any_reads_give_the_bytes_that_are_there(counted: Counted) -> None:
    file, chance = Ranges(counted, counted.path), random.Random(1)
    for _ in range(200):
        start, size = chance.randrange(len(DATA)), chance.choice([1, 1000, AHEAD_BYTES - 1, AHEAD_BYTES, 2 * AHEAD_BYTES])
        assert _read(file, start, size) == DATA[start:start + size]
    assert _read(file, len(DATA), 10) == b""
    file.seek(0)
    assert file.read() == DATA


def test_columns_one_behind_the_other_are_one_request(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = range(1000, 1000 + AHEAD_BYTES // 2, 20_000)
    file = Ranges(counted, counted.path)
    for start in starts:
        assert _read(file, start, 10_000) == DATA[start:start + 10_000]
    assert counted.asked == [(1000, 1000 + AHEAD_BYTES)]
    monkeypatch.setattr(seams.RANGES_AHEAD_BYTES, 0)  # the control
    file, counted.asked = Ranges(counted, counted.path), []
    for start in starts:
        _read(file, start, 10_000)
    assert len(counted.asked) == len(starts)


def test_large_reads_are_exact_and_are_not_kept(counted: Counted) -> None:
    file = Ranges(counted, counted.path)
    for _ in range(2):
        assert _read(file, 5, 2 * AHEAD_BYTES) == DATA[5:5 + 2 * AHEAD_BYTES]
    assert counted.asked == [(5, 5 + 2 * AHEAD_BYTES)] * 2


def test_what_goes_wrong_is_storage_s_and_another_try_reads_on(counted: Counted) -> None:
    file = Ranges(counted, counted.path)
    counted.error = RuntimeError("503, message='Service Unavailable'")
    with pytest.raises(StorageError, match="Service Unavailable"):
        _read(file, 0, 10)
    counted.error = None
    assert _read(file, 0, 10) == DATA[:10]
