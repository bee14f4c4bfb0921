"""From a window of the row order to its rows: reads one row group and takes the wanted columns and rows, in order.

Reads with pyarrow alone, by the manifest's schema; pickled metadata is never used. Safe to call from several threads: each has
its own open files.
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
from sparkring.pipelines.data.dataset.stored_columns import changes
from sparkring.pipelines.data.loading.buffer_pool import BufferPool
from sparkring.pipelines.data.loading.buffered_rows import Array, BufferedRows, DenseRows, EncodedRows
from sparkring.pipelines.data.loading.codecs import uniform_arrays
from sparkring.pipelines.data.loading.page_checksums import VerifiedFile, damaged
from sparkring.pipelines.data.loading.plain_pages import PlainPages
from sparkring.pipelines.data.order.row_order import Int64s, group_rows
from sparkring.pipelines.data.stores.base import Readable
from sparkring.pipelines.data.stores.retry import retry_read

AT_ONCE_BYTES = 20 << 20
"""Row groups of more decoded bytes are read column by column, since Arrow holds nearly three times its output while
it reads. Those of prepare are smaller."""
OPEN_FILES = 16  # per thread; an open file keeps its footer, which is expensive to read again


class SplitReader:
    """Reads row groups of one split of a dataset version."""

    def __init__(self, store: Readable, manifest: Manifest, split: str, *, tensors: Sequence[str] | None = None) -> None:
        """Prepare to read; no file is opened yet.

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
        """Memory of the arrays that this reader makes, and of the tensors made from them."""
        self.fields = {field.name: field for field in manifest.fields}
        self.specs = tuple(spec for spec in manifest.tensors if tensors is None or spec.name in tensors)
        self.files: tuple[DataFile, ...] = manifest.splits[split].files
        by_row = any(spec.mask or (spec.image and spec.image.augment) for spec in self.specs)
        self._read_specs = tuple(spec for spec in manifest.tensors if spec in self.specs or (by_row and spec.name == ROW_ID))
        self._changes = changes(manifest.stored, manifest.preprocessing)
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
        """The file of a row group, and the row group's number in that file; ``group`` counts in the manifest's
        order.
        """
        number = int(np.searchsorted(self._first_group, group, side="right")) - 1
        return self.files[number], group - int(self._first_group[number])

    def window_bytes(self) -> int:
        """Approximate memory of the largest row group once it is decoded."""
        rows, stored = group_rows([file.row_groups for file in self.files]), group_rows([file.row_group_bytes for file in self.files])
        return int((rows * self._row_bytes + stored * self._encoded).max(initial=0))

    def making_bytes(self) -> int:
        """Approximate memory of a thread while it reads the largest row group.

        A row group that is read at once takes Arrow's columns and the rows made from them; one that is read column by
        column takes its rows and one of Arrow's columns. A column of encoded cells is mostly the whole row group.
        """
        largest = self.window_bytes()
        return largest * 4 if self._encoded else max(largest * 2, min(largest, AT_ONCE_BYTES) * 4)

    def batch_bytes(self, rows: int) -> int:
        """Approximate memory of ``rows`` rows as tensors, for images including the pixels they are made from."""
        return rows * sum(
            math.prod(spec.row_shape) * (np.dtype(spec.dtype).itemsize + (spec.image is not None)) for spec in self.specs)

    def read(self, group: int, start: int, stop: int, order: Int64s) -> dict[str, BufferedRows]:
        """Read rows [start, stop) of a row group in the given order.

        Args:
            group: The row group's number in the manifest's order.
            start: First row inside the row group.
            stop: One past the last row.
            order: (stop - start,) the row, counted from ``start``, at each position.
        Returns:
            Tensor name -> its rows; those of the row id too if augmentation needs them.
        Raises:
            DatasetError: the file is missing, damaged, or not what the manifest says; the error names it.
            StorageError: storage does not answer.
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
        """As ``read``, with Arrow's or the store's own errors; the file is opened again after one."""
        decoded = file.row_groups[index] * self._row_bytes + (file.row_group_bytes[index] if self._encoded else 0)
        at_once = decoded <= AT_ONCE_BYTES
        try:
            opened = self._open(file, index)
            plain = {name for name in self._columns
                     if self.fields[name].codec == "scalar" and opened.plain.may_hold(index, name, self.fields[name].dtype)}
            others = [name for name in self._columns if name not in plain]
            opened.plain.expect(index, plain)
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

            rows = {spec.name: self._tensor(spec, map(column, spec.fields), order) for spec in self._read_specs}
            opened.plain.expect(index, ())
            return rows
        except (OSError, DatasetError):
            self._forget(file)
            raise

    def _tensor(self, spec: TensorSpec, columns: Iterator[Array | pa.Array], order: Int64s) -> BufferedRows:
        if spec.stacked:
            stacked = self.buffers.empty((len(spec.fields), len(order)), spec.dtype)
            return DenseRows(_stack(map(self._taken, spec.fields, columns), stacked, order))
        field, column = self.fields[spec.fields[0]], next(columns)
        if field.codec == "scalar":
            return DenseRows(_values(column).take(order))
        arrays = uniform_arrays(column, field) if field.codec == "ndarray" and spec.pad is None else None
        if arrays is not None:
            return DenseRows(arrays.take(order, axis=0))
        return EncodedRows(column.take(pa.array(order)))

    def _taken(self, name: str, column: Array | pa.Array) -> Array:
        """A stored column as the network takes it."""
        values = _values(column)
        return self._changes[name](values) if name in self._changes else values

    def _open(self, file: DataFile, index: int) -> _OpenFile:
        """This thread's open file, checked to have the row group; the least recently used one beyond ``OPEN_FILES``
        is closed.
        """
        if not hasattr(self._local, "files"):
            self._local.files = OrderedDict()
        files: OrderedDict[str, _OpenFile] = self._local.files
        if file.path not in files:
            source = self._store.open_input(file.path)
            verified = VerifiedFile(source, path=self._store.path(file.path))
            parquet = pq.ParquetFile(verified, pre_buffer=False)  # a column at a time: the budget counts on it, later Arrows would not
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
    """The same file for Arrow to read."""
    parquet: pq.ParquetFile
    plain: PlainPages


def read_rows(parquet: pq.ParquetFile, index: int, start: int, stop: int, columns: list[str]) -> pa.Table:
    """Rows [start, stop) of a row group; pages after ``stop`` are not decoded."""
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
    """A column as one array; nulls are allowed only in a nullable float column, as NaN."""
    if column.null_count and not (field.nullable and field.codec == "scalar" and field.dtype.startswith("float")):
        raise DatasetError(f"column {field.name} of {file.path} holds {column.null_count} nulls, the manifest says none; "
                           "prepare a new version.")
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _values(column: Array | pa.Array) -> Array:
    values: Array = column if isinstance(column, np.ndarray) else column.to_numpy(zero_copy_only=False)
    return values


def _stack(columns: Iterable[Array], stacked: Array, order: Int64s) -> Array:
    """Columns side by side, rows in ``order``: (rows, columns), each column contiguous in memory as in the file.

    So neither this nor joining the rows of a batch writes with strides, which costs twice as much. Torch's matrix products take
    either layout.

    Args:
        columns: (window rows,) each.
        stacked: (columns, rows) to fill.
        order: (rows,) the row at each position.
    """
    for column, target in zip(columns, stacked, strict=True):
        if column.dtype == stacked.dtype:
            np.take(column, order, out=target, mode="clip")  # all indices are in bounds; mode "raise" would use a buffer
        else:
            target[:] = column.take(order)
    return stacked.T
