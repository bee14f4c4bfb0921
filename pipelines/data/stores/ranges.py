"""An open file of any fsspec file system: reads byte ranges, checks each answer, and joins neighbouring small reads.

Arrow reads a row group column by column, in tens of reads of some kilobytes. fsspec's own open files read ahead 5 MB or
more at every read, and those of ``memory:`` share one position. A server that ignores ranges sends the whole file,
which is then kept in memory.
"""

from __future__ import annotations

import io
from typing import Any

from sparkring.errors import StorageError

AHEAD_BYTES = 1 << 20
"""Bytes that a smaller read fetches at once, and that an open file keeps in memory."""


class Ranges(io.RawIOBase):
    """A file open for random access."""

    def __init__(self, file_system: Any, path: str) -> None:
        """Request the file's size; FileNotFoundError if it does not exist."""
        super().__init__()
        self._fs, self._path, self._place = file_system, path, 0
        info = file_system.info(path)
        if info["type"] != "file":
            raise FileNotFoundError(f"{path} is not a file")
        self._whole: bytes | None = None if info["size"] is not None else file_system.cat_file(path)
        self._size = int(info["size"]) if self._whole is None else len(self._whole)
        self._ahead, self._ahead_start = b"", 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, and return it."""
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def tell(self) -> int:
        """The position of the next read."""
        return self._place

    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        """The next ``size`` bytes, fewer only at the end."""
        end = self._size if size is None or size < 0 else min(self._place + size, self._size)
        data = self._range(self._place, end) if end > self._place else b""
        self._place += len(data)
        return data

    def _range(self, start: int, end: int) -> bytes:
        if self._whole is None and end - start < AHEAD_BYTES:
            return self._small_range(start, end)
        return self._fetched(start, end)

    def _small_range(self, start: int, end: int) -> bytes:
        """Bytes [start, end) from those read ahead; reads ahead again if they are not among them."""
        if not self._ahead_start <= start <= end <= self._ahead_start + len(self._ahead):
            self._ahead, self._ahead_start = self._fetched(start, min(start + AHEAD_BYTES, self._size)), start
        return self._ahead[start - self._ahead_start:end - self._ahead_start]

    def _fetched(self, start: int, end: int) -> bytes:
        """Bytes [start, end) by one request, or from the whole file if the server sent that."""
        if self._whole is None:
            try:
                data: bytes = self._fs.cat_file(self._path, start=start, end=end)
            except FileNotFoundError:
                raise
            except Exception as error:  # each file system has errors of its own
                raise StorageError(f"{self._path}: {' '.join(str(error).split()) or type(error).__name__}; check that the "
                                   "storage can be reached.") from error
            if len(data) == end - start:
                return data
            if len(data) != self._size:
                raise StorageError(f"{self._path}: {len(data)} of the {end - start} bytes from {start} on arrived; try again.")
            self._whole = data
        return self._whole[start:end]
