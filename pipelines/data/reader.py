"""From a window of the row order to tensors: reads one row group, takes the wanted columns, rows and order.

Reads with pyarrow alone, by the manifest's schema; no pickled metadata is ever looked at. Safe to call from several
threads: each keeps its own open files.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparkring.errors import DatasetError
from sparkring.pipelines.data.manifest import DataFile, Manifest, TensorSpec
from sparkring.pipelines.data.order import Int64s
from sparkring.pipelines.data.store import Store

OPEN_FILES = 16  # a thread; an open file holds its footer, which is what costs to read again


class SplitReader:
    """Reads row groups of one split of a dataset version."""

    def __init__(self, store: Store, manifest: Manifest, split: str, *, tensors: Sequence[str] | None = None) -> None:
        """Prepare to read; opens nothing yet.

        Args:
            store: The dataset's folder.
            manifest: The version to read.
            split: One of its splits.
            tensors: Names of the tensors to make; default all.
        Raises:
            DatasetError: the version has no such split or tensor.
        """
        if split not in manifest.splits:
            raise DatasetError(f"version {manifest.version} has no split {split!r}; it has {', '.join(manifest.splits)}.")
        names = [spec.name for spec in manifest.tensors]
        unknown = set(tensors or ()) - set(names)
        if unknown:
            raise DatasetError(f"version {manifest.version} has no tensor {min(unknown)!r}; it has {', '.join(names)}.")
        self.specs = tuple(spec for spec in manifest.tensors if tensors is None or spec.name in tensors)
        self.files: tuple[DataFile, ...] = manifest.splits[split].files
        self._columns = list(dict.fromkeys(field for spec in self.specs for field in spec.fields))
        counts = [len(file.row_groups) for file in self.files]
        self._first_group = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._store = store
        self._local = threading.local()

    def place(self, group: int) -> tuple[DataFile, int]:
        """The file of a row group by its number in the manifest's order, and its number in that file."""
        number = int(np.searchsorted(self._first_group, group, side="right")) - 1
        return self.files[number], group - int(self._first_group[number])

    def read(self, group: int, start: int, stop: int, order: Int64s) -> dict[str, Tensor]:
        """Read rows [start, stop) of a row group in the given order.

        Args:
            group: The row group's number in the manifest's order.
            start: First row inside the row group.
            stop: One past the last row.
            order: (stop - start,) which of those rows comes at each place.
        Returns:
            Tensor name -> (rows, fields), or (rows,) where the manifest says not stacked.
        Raises:
            DatasetError: the file is gone, damaged, or not what the manifest says; it is named.
        """
        file, index = self.place(group)
        try:
            parquet = self._open(file)
            table = parquet.read_row_group(index, columns=self._columns, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise DatasetError(f"row group {index} of {self._store.path(file.path)} cannot be read: {error}; "
                               "the file changed after the version was committed. Restore it, or prepare a new version.") from error
        if table.num_rows != file.row_groups[index]:
            raise DatasetError(f"row group {index} of {self._store.path(file.path)} has {table.num_rows} rows, the manifest says "
                               f"{file.row_groups[index]}; the file changed after the version was committed. Prepare a new version.")
        columns = {name: _values(table.column(name), name, file) for name in self._columns}
        return {spec.name: torch.from_numpy(_gather(spec, columns, start, stop, order)) for spec in self.specs}

    def _open(self, file: DataFile) -> pq.ParquetFile:
        """The open file of this thread; the least recently used one beyond ``OPEN_FILES`` is closed."""
        if not hasattr(self._local, "files"):
            self._local.files = OrderedDict()
        files: OrderedDict[str, pq.ParquetFile] = self._local.files
        if file.path in files:
            files.move_to_end(file.path)
            return files[file.path]
        files[file.path] = parquet = pq.ParquetFile(self._store.path(file.path), memory_map=True)
        if len(files) > OPEN_FILES:
            files.popitem(last=False)[1].close()
        return parquet


def _values(column: pa.ChunkedArray, name: str, file: DataFile) -> NDArray[np.generic]:
    if column.null_count:
        raise DatasetError(f"column {name} of {file.path} holds {column.null_count} nulls, the manifest says none; prepare a new version.")
    values: NDArray[np.generic] = column.to_numpy()
    return values


def _gather(spec: TensorSpec, columns: Mapping[str, NDArray[np.generic]], start: int, stop: int, order: Int64s) -> NDArray[np.generic]:
    """Stack the spec's fields side by side, rows in ``order``."""
    dtype = np.dtype(spec.dtype)
    if not spec.stacked:
        return columns[spec.fields[0]][start:stop].take(order).astype(dtype, copy=False)
    out = np.empty((stop - start, len(spec.fields)), dtype=dtype)
    for position, name in enumerate(spec.fields):
        out[:, position] = columns[name][start:stop].take(order)
    return out
