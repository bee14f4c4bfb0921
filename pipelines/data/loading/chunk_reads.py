"""Reading the column chunks of a row group, those that lie next to each other at once.

A read hands over Python's lock, and with several reader threads each handing over may wake another one. Where a row has many columns
this costs as much as the reading itself. Does not look into a chunk (plain_pages.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from typing import Final

import pyarrow as pa

AT_ONCE_BYTES: Final = 8 << 20
"""Most bytes of several chunks that are read, and held, at once."""
GAP_BYTES: Final = 4096
"""Most bytes between two neighbours: some writers repeat a chunk's metadata behind it."""


class ChunkReads:
    """The column chunks of one open file. Do not share it between threads: it moves the file's position."""

    def __init__(self, source: pa.NativeFile) -> None:
        """Read ``source``."""
        self._source = source
        self._expected: list[tuple[int, int]] = []
        self._start, self._held = 0, pa.py_buffer(b"")

    def expect(self, chunks: Iterable[tuple[int, int]]) -> None:
        """Expect reads of these chunks, (first byte, bytes) each, and let go of what is held for the ones before."""
        self._expected = sorted(chunks)
        self._start, self._held = 0, pa.py_buffer(b"")

    def read(self, offset: int, size: int) -> pa.Buffer:
        """The bytes of a chunk: fewer than ``size`` if the file ends before.

        Raises:
            OSError: the file cannot be read.
        """
        if offset < self._start or offset + size > self._start + self._held.size:
            end = offset + size
            for start, length in islice(self._expected, bisect_left(self._expected, (end, 0)), None):
                if start - end > GAP_BYTES or start + length - offset > AT_ONCE_BYTES:
                    break
                end = start + length
            self._source.seek(offset)
            self._start, self._held = offset, self._source.read_buffer(end - offset)
        first = offset - self._start
        return self._held.slice(first, min(size, self._held.size - first))
