"""Rows that wait for their steps: the values of one tensor of a window, in the lane's order.

    DenseRows     values in memory                          scalars, arrays of one shape
    EncodedRows   cells still encoded, decoded by the step  images, compressed and ragged arrays: a tenth of the memory
    spilled rows  the same on local disk                    rows beyond the rank's memory budget

Each step takes the rows [start, stop) that follow those of the step before, so a spill file is read from front to back.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkring.errors import StorageError

Array = NDArray[np.generic]
Cells = list[bytes]
"""Encoded values, one per row."""
TILE_ROWS = 16_384
"""Rows written to disk at a time."""


class BufferedRows(Protocol):
    """Rows of one tensor of one window."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        ...

    def take(self, start: int, stop: int) -> Array | Cells:
        """Rows [start, stop): an array (rows, ...) in the stored type, or the rows' cells."""
        ...

    def spill(self, folder: Path | None) -> BufferedRows:
        """The same rows in a file under ``folder`` (None: where temporary files go)."""
        ...


@dataclass(frozen=True)
class DenseRows:
    """Decoded rows in memory."""

    values: Array
    """(rows, ...)"""

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.values.nbytes

    def take(self, start: int, stop: int) -> Array:
        """A view."""
        return self.values[start:stop]

    def spill(self, folder: Path | None) -> BufferedRows:
        """Write the values to an unnamed file."""
        file = _SpillFile(folder)
        for first in range(0, len(self.values), TILE_ROWS):  # a copy of a tile, not of the whole
            file.append(_bytes_of(self.values[first:first + TILE_ROWS]))
        return _SpilledRows(file, self.values.dtype, self.values.shape[1:])


@dataclass(frozen=True)
class EncodedRows:
    """Encoded rows in memory."""

    cells: pa.Array
    """Binary, no nulls."""

    @property
    def nbytes(self) -> int:
        """Bytes of the cells."""
        return int(self.cells.nbytes)

    def take(self, start: int, stop: int) -> Cells:
        """Copies of the cells."""
        taken: Cells = self.cells.slice(start, stop - start).to_pylist()
        return taken

    def spill(self, folder: Path | None) -> BufferedRows:
        """Write the cells to an unnamed file; their offsets stay in memory."""
        cells = self.take(0, len(self.cells))
        ends = np.zeros(len(cells) + 1, dtype=np.int64)
        np.cumsum([len(cell) for cell in cells], out=ends[1:])
        file = _SpillFile(folder)
        for first in range(0, len(cells), TILE_ROWS):
            file.append(np.frombuffer(b"".join(cells[first:first + TILE_ROWS]), dtype=np.uint8))
        return _SpilledCells(file, ends)


@dataclass(frozen=True)
class _SpilledRows:
    file: _SpillFile
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    nbytes: int = 0

    def take(self, start: int, stop: int) -> Array:
        values = np.empty((stop - start, *self.shape), dtype=self.dtype)
        if values.nbytes:
            self.file.read(_bytes_of(values), offset=start * (values.nbytes // len(values)))
        return values

    def spill(self, folder: Path | None) -> BufferedRows:
        return self


@dataclass(frozen=True)
class _SpilledCells:
    file: _SpillFile
    ends: NDArray[np.int64]
    """(rows + 1,) offsets of the cells in the file."""

    @property
    def nbytes(self) -> int:
        return self.ends.nbytes

    def take(self, start: int, stop: int) -> Cells:
        places = self.ends[start:stop + 1] - self.ends[start]
        data = np.empty(int(places[-1]), dtype=np.uint8)
        self.file.read(data, offset=int(self.ends[start]))
        whole, borders = data.tobytes(), places.tolist()
        return [whole[first:last] for first, last in pairwise(borders)]

    def spill(self, folder: Path | None) -> BufferedRows:
        return self


class _SpillFile:
    """Bytes on local disk in an unnamed file, which disappears with the process however that ends.

    Read with ``pread`` and not mapped: mapped pages would count as memory of this process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        with self._naming_the_folder():
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed with the last block that uses it

    def append(self, data: NDArray[np.uint8]) -> None:
        """Write all of ``data`` at the end."""
        view, written = data.data, 0
        with self._naming_the_folder():
            while written < len(view):
                written += self._file.write(view[written:])

    def read(self, into: NDArray[np.uint8], *, offset: int) -> None:
        """Fill ``into`` with the bytes from ``offset`` on."""
        view, done = into.data, 0
        while done < len(view):
            count = os.preadv(self._file.fileno(), [view[done:]], offset + done)
            if not count:
                raise OSError(f"a spill file ends at byte {offset + done}, {len(view) - done} early")
            done += count

    @contextmanager
    def _naming_the_folder(self) -> Iterator[None]:
        """Turn an error, such as a full disk, into one that names the folder."""
        try:
            yield
        except OSError as error:
            raise StorageError(f"rows that wait for their step cannot be written to {self._folder}: {error.strerror}; free space there, "
                               "name another folder with TMPDIR, or raise train.memory_mb, beyond which rows wait on disk.") from error


def _bytes_of(values: Array) -> NDArray[np.uint8]:
    """The memory of an array, row by row."""
    return values.reshape(-1).view(np.uint8)
