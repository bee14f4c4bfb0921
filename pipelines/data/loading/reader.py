"""From a window of the row order to blocks: reads one row group, takes the wanted columns, rows and order.

Reads with pyarrow alone, by the manifest's schema; no pickled metadata is ever looked at. Safe to call from several
threads: each keeps its own open files.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkring.errors import DatasetError, StorageError
from sparkring.pipelines.data.dataset.integrity import UNREADABLE
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest
from sparkring.pipelines.data.dataset.row_schema import ROW_ID, DataField, TensorSpec
from sparkring.pipelines.data.loading.buffer_pool import BufferPool
from sparkring.pipelines.data.loading.buffered_rows import Array, BufferedRows, DenseRows, EncodedRows
from sparkring.pipelines.data.loading.codecs import uniform_arrays
from sparkring.pipelines.data.loading.page_checksums import VerifiedFile, damaged
from sparkring.pipelines.data.loading.plain_pages import PlainPages
from sparkring.pipelines.data.order.row_order import Int64s, group_rows
from sparkring.pipelines.data.stores.base import Readable
from sparkring.pipelines.data.stores.retry import retry_read

AT_ONCE_BYTES = 20 << 20
"""Decoded, above which a row group is read column by column: while Arrow reads, it holds nearly three times what comes out. What prepare
writes is smaller."""
OPEN_FILES = 16  # a thread; an open file holds its footer, which is what costs to read again


class SplitReader:
    """Reads row groups of one split of a dataset version."""

    def __init__(self, store: Readable, manifest: Manifest, split: str, *, tensors: Sequence[str] | None = None) -> None:
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
        self.split = split
        self.buffers = BufferPool()
        """Of the arrays of this reader's rows, and of what is made of them."""
        self.fields = {field.name: field for field in manifest.fields}
        self.specs = tuple(spec for spec in manifest.tensors if tensors is None or spec.name in tensors)
        self.files: tuple[DataFile, ...] = manifest.splits[split].files
        augmented = any(spec.image and spec.image.augment for spec in self.specs)
        self._read_specs = tuple(spec for spec in manifest.tensors if spec in self.specs or (augmented and spec.name == ROW_ID))
        self._columns = list(dict.fromkeys(field for spec in self._read_specs for field in spec.fields))
        self._row_bytes = sum(
            np.dtype(spec.dtype if spec.stacked else self.fields[spec.fields[0]].dtype).itemsize * math.prod(spec.row_shape)
            for spec in self._read_specs if spec.image is None and spec.pad is None)
        self._encoded = any(not spec.stacked and self.fields[spec.fields[0]].codec != "scalar" for spec in self._read_specs)
        counts = [len(file.row_groups) for file in self.files]
        self._first_group = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._store = store
        self._local = threading.local()

    def place(self, group: int) -> tuple[DataFile, int]:
        """The file of a row group by its number in the manifest's order, and its number in that file."""
        number = int(np.searchsorted(self._first_group, group, side="right")) - 1
        return self.files[number], group - int(self._first_group[number])

    def window_bytes(self) -> int:
        """Memory that the largest row group may take once it is decoded, about."""
        rows, stored = group_rows([file.row_groups for file in self.files]), group_rows([file.row_group_bytes for file in self.files])
        return int((rows * self._row_bytes + stored * self._encoded).max(initial=0))

    def making_bytes(self) -> int:
        """Memory that a thread may take while it reads the largest row group and makes blocks of it, about.

        Arrow's columns while they are read, and the blocks; of row groups that are read column by column, all blocks and one of Arrow's
        columns. A column of encoded cells mostly is the whole row group.
        """
        largest = self.window_bytes()
        return largest * 4 if self._encoded else max(largest * 2, min(largest, AT_ONCE_BYTES) * 4)

    def batch_bytes(self, rows: int) -> int:
        """Memory that so many rows take as tensors, about; while they are made, images take it as pixels and normalised."""
        return rows * sum(
            math.prod(spec.row_shape) * (np.dtype(spec.dtype).itemsize + (spec.image is not None)) for spec in self.specs)

    def read(self, group: int, start: int, stop: int, order: Int64s) -> dict[str, BufferedRows]:
        """Read rows [start, stop) of a row group in the given order.

        Args:
            group: The row group's number in the manifest's order.
            start: First row inside the row group.
            stop: One past the last row.
            order: (stop - start,) which of those rows comes at each place.
        Returns:
            Tensor name -> its rows; the row id's too where augmentation needs it.
        Raises:
            DatasetError: the file is gone, damaged, or not what the manifest says; it is named.
            StorageError: storage is away, and stays so.
        """
        file, index = self.place(group)
        try:
            return retry_read(partial(self._read, file, index, start, stop, order))
        except StorageError:
            raise
        except UNREADABLE as error:
            raise DatasetError(f"row group {index} of {self._store.path(file.path)} cannot be read: {error}; "
                               "the file changed after the version was committed. Restore it, or prepare a new version.") from error

    def _read(self, file: DataFile, index: int, start: int, stop: int, order: Int64s) -> dict[str, BufferedRows]:
        """As ``read``; what goes wrong is Arrow's or the store's own error, and the file is opened anew after that."""
        decoded = file.row_groups[index] * self._row_bytes + (file.row_group_bytes[index] if self._encoded else 0)
        at_once = decoded <= AT_ONCE_BYTES
        try:
            opened = self._open(file, index)
            plain = {name for name in self._columns
                     if self.fields[name].codec == "scalar" and opened.plain.may_hold(index, name, self.fields[name].dtype)}
            others = [name for name in self._columns if name not in plain]
            table = read_rows(opened.parquet, index, start, stop, others) if others and at_once else None

            def column(name: str) -> Array | pa.Array:
                values = opened.plain.values(index, name, start=start, stop=stop) if name in plain else None
                if values is not None:
                    return values
                rows = table if table is not None and name not in plain else read_rows(opened.parquet, index, start, stop, [name])
                if rows.num_rows != stop - start:
                    raise damaged(f"column {name} of row group {index} of {self._store.path(file.path)} ends after {start + rows.num_rows} "
                                  f"rows of {file.row_groups[index]}")
                return _in_one_piece(rows.column(name), self.fields[name], file)

            return {spec.name: self._tensor(spec, map(column, spec.fields), order) for spec in self._read_specs}
        except (OSError, DatasetError):
            self._forget(file)
            raise

    def _tensor(self, spec: TensorSpec, columns: Iterator[Array | pa.Array], order: Int64s) -> BufferedRows:
        if spec.stacked:
            stacked = self.buffers.empty((len(spec.fields), len(order)), spec.dtype)
            return DenseRows(_stack(map(_values, columns), stacked, order))
        field, column = self.fields[spec.fields[0]], next(columns)
        if field.codec == "scalar":
            return DenseRows(_values(column).take(order))
        arrays = uniform_arrays(column, field) if field.codec == "ndarray" and spec.pad is None else None
        if arrays is not None:
            return DenseRows(arrays.take(order, axis=0))
        return EncodedRows(column.take(pa.array(order)))

    def _open(self, file: DataFile, index: int) -> _OpenFile:
        """The open file of this thread, which has such a row group; the least recently used one beyond ``OPEN_FILES`` is closed."""
        if not hasattr(self._local, "files"):
            self._local.files = OrderedDict()
        files: OrderedDict[str, _OpenFile] = self._local.files
        if file.path not in files:
            source = self._store.open_input(file.path)
            verified = VerifiedFile(source, path=self._store.path(file.path))
            parquet = pq.ParquetFile(verified)
            files[file.path] = _OpenFile(source, verified, parquet, PlainPages(source, parquet))
            if len(files) > OPEN_FILES:
                files.popitem(last=False)[1].source.close()
        files.move_to_end(file.path)
        opened = files[file.path]
        found = opened.parquet.metadata.row_group(index).num_rows if index < opened.parquet.num_row_groups else 0
        if found != file.row_groups[index]:
            raise DatasetError(f"row group {index} of {self._store.path(file.path)} has {found} rows, the manifest says "
                               f"{file.row_groups[index]}; the file changed after the version was committed. Prepare a new version.")
        opened.verified.expect(opened.parquet.metadata, index)
        return opened

    def _forget(self, file: DataFile) -> None:
        """Close a file of this thread, if it is open."""
        opened = getattr(self._local, "files", {}).pop(file.path, None)
        if opened is not None:
            with suppress(OSError):
                opened.source.close()


@dataclass(frozen=True)
class _OpenFile:
    """A thread's open file."""

    source: pa.NativeFile
    verified: VerifiedFile
    """The same for Arrow."""
    parquet: pq.ParquetFile
    plain: PlainPages


def read_rows(parquet: pq.ParquetFile, index: int, start: int, stop: int, columns: list[str]) -> pa.Table:
    """Rows [start, stop) of a row group; pages behind ``stop`` are not decoded."""
    if stop == parquet.metadata.row_group(index).num_rows:
        return parquet.read_row_group(index, columns=columns, use_threads=False).slice(start)
    batches, rows = [], 0
    for batch in parquet.iter_batches(batch_size=stop, row_groups=[index], columns=columns, use_threads=False):
        batches.append(batch)
        rows += batch.num_rows
        if rows >= stop:
            break
    return pa.Table.from_batches(batches).slice(start, stop - start)


def _in_one_piece(column: pa.ChunkedArray, field: DataField, file: DataFile) -> pa.Array:
    """The window's values in one piece; nulls only as the NaN of a nullable float."""
    if column.null_count and not (field.nullable and field.codec == "scalar" and field.dtype.startswith("float")):
        raise DatasetError(f"column {field.name} of {file.path} holds {column.null_count} nulls, the manifest says none; "
                           "prepare a new version.")
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _values(column: Array | pa.Array) -> Array:
    values: Array = column if isinstance(column, np.ndarray) else column.to_numpy(zero_copy_only=False)
    return values


def _stack(columns: Iterable[Array], stacked: Array, order: Int64s) -> Array:
    """Columns side by side, rows in ``order``: (rows, columns), a column's values next to each other in memory as in the file.

    So neither this nor joining the pieces of a batch writes with strides, which costs twice as much; torch's products take
    either layout.

    Args:
        columns: (window rows,) each.
        stacked: (columns, rows) to fill.
        order: (rows,) which row comes at each place.
    """
    for column, target in zip(columns, stacked, strict=True):
        if column.dtype == stacked.dtype:
            np.take(column, order, out=target, mode="clip")  # as it is in bounds; "raise" would go through a buffer
        else:
            target[:] = column.take(order)
    return stacked.T
