"""Numbers that a Parquet file holds as memory does, read past Arrow's decoder: for less processor time, and the cache keeps a column.

What is written without a dictionary and without nulls lies in the file as in an array. Arrow copies it three times, all columns of a row
group before the first is used; here a page is decompressed, and that is the array.

    column chunk    page page ...
    page            header: kind, sizes, number of values    (Thrift's compact protocol)
                    body:   [definition levels] values

Whatever is otherwise - another encoding or compression, nulls, sizes that do not add up - gives None and is left to Arrow, which knows
all of it and says what is wrong with a file. Nothing here trusts a number of the file's.

Source: Parquet's file format, https://parquet.apache.org/docs/file-format/data-pages/, and PageHeader in its parquet.thrift; Thrift's
compact protocol, https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

LARGEST_BYTES = 8 << 20
"""Of a column chunk: its pages, what they decompress to and the values in one piece are in memory together."""
FEWEST_ROWS = 1 << 14
"""Of a page, but the last: below, Arrow's work a page is less than Python's."""
DTYPES: Final = {"FLOAT": "<f4", "DOUBLE": "<f8", "INT32": "<i4", "INT64": "<i8"}
ENCODINGS: Final = {"PLAIN", "RLE", "BIT_PACKED"}
"""Of values; of levels; of levels, by old writers."""
PLAIN: Final = 0
DATA_PAGE, DATA_PAGE_V2 = 0, 3


class PlainPages:
    """The columns of one open file, as far as their pages are plain. Not to be shared between threads: it moves the file's position."""

    def __init__(self, source: pa.NativeFile, parquet: pq.ParquetFile) -> None:
        self._source, self._metadata, self._snappy = source, parquet.metadata, pa.Codec("snappy")
        columns = enumerate(parquet.schema.column(place) for place in range(len(parquet.schema)))
        self._columns = {column.path: (place, column.max_definition_level) for place, column in columns
                         if column.max_repetition_level == 0 and column.max_definition_level <= 1
                         and column.logical_type.type in ("NONE", "INT")}

    def may_hold(self, group: int, name: str, dtype: str) -> bool:
        """Whether the footer says that this column's values of a row group are plain ones of ``dtype``."""
        rows = self._metadata.row_group(group)
        if name not in self._columns or rows.num_rows < FEWEST_ROWS:
            return False
        chunk = rows.column(self._columns[name][0])
        return bool(DTYPES.get(chunk.physical_type) == np.dtype(dtype).newbyteorder("<").str and set(chunk.encodings) <= ENCODINGS
                    and chunk.compression in ("UNCOMPRESSED", "SNAPPY") and not chunk.has_dictionary_page
                    and 0 < chunk.total_compressed_size <= LARGEST_BYTES)

    def values(self, group: int, name: str, *, start: int, stop: int) -> NDArray[np.generic] | None:
        """Values [start, stop) of a column of which ``may_hold`` is true; None: its pages are something else.

        Raises:
            OSError: the file cannot be read.
        """
        place, nullable = self._columns[name]
        rows = self._metadata.row_group(group)
        chunk = rows.column(place)
        self._source.seek(chunk.data_page_offset)
        data = self._source.read_buffer(chunk.total_compressed_size)
        codec = self._snappy if chunk.compression == "SNAPPY" else None
        dtype = np.dtype(DTYPES[chunk.physical_type])
        view, at, first = memoryview(data).cast("B"), 0, 0
        parts: list[NDArray[np.generic]] = []
        try:
            while first < stop:
                page = _Page.read(view, at, levels=bool(nullable), compressed=codec is not None)
                if not min(FEWEST_ROWS, rows.num_rows - first) <= page.rows <= rows.num_rows - first:
                    return None
                if first + page.rows > start:
                    parts.append(page.values(data, codec, dtype)[max(0, start - first):stop - first])
                first, at = first + page.rows, page.end
        except (LookupError, ValueError, OSError):  # OSError: Snappy's of bytes that make no sense; all are in memory
            return None
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True)
class _Page:
    """Where a page's values lie in its column chunk."""

    rows: int
    begin: int
    """First byte of the body that may be compressed."""
    end: int
    """One past the page's last byte."""
    size: int
    """Bytes of that body once it is decompressed."""
    levels: bool
    """Whether it begins with definition levels."""
    compressed: bool

    @classmethod
    def read(cls, view: memoryview, at: int, *, levels: bool, compressed: bool) -> _Page:
        """Read the header at ``at``; ValueError or LookupError where it is of another kind of page, or makes no sense."""
        header, body = _struct(view, at)
        size, end = header[2], body + header[3]
        if not body <= end <= len(view):
            raise ValueError(f"a page of {header[3]} bytes")
        if header[1] == DATA_PAGE:
            rows, encoding = header[5][1], header[5][2]
        elif header[1] == DATA_PAGE_V2:
            stated = header[8]
            rows, encoding = stated[1], stated[4]
            if stated[2] or stated[6] or stated[5] < 0:
                raise ValueError("nulls, or lists")
            body, size, levels, compressed = body + stated[5], size - stated[5], False, compressed and stated.get(7, True)
        else:
            raise ValueError(f"a page of kind {header[1]}")
        if encoding != PLAIN or not 0 <= body <= end or not 0 <= size <= 9 * rows + 64:
            raise ValueError(f"values of encoding {encoding}, {size} bytes for {rows}")
        return cls(rows, body, end, size, levels, bool(compressed))

    def values(self, data: pa.Buffer, codec: pa.Codec | None, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        """(rows,) without a copy if nothing is compressed; ValueError where there are more or fewer, as with nulls."""
        body = data.slice(self.begin, self.end - self.begin)
        if self.compressed and codec is not None:
            if _varint(memoryview(body).cast("B"), 0)[0] != self.size:  # Snappy's own word; Arrow would leave the rest as it was
                raise ValueError("a page that decompresses to another size")
            body = codec.decompress(body, self.size)
        skipped = 4 + int.from_bytes(memoryview(body)[:4].tobytes(), "little") if self.levels else 0
        if len(body) - skipped != self.rows * dtype.itemsize:
            raise ValueError(f"{len(body) - skipped} bytes for {self.rows} values")
        return np.frombuffer(body, dtype=dtype, offset=skipped)


def _struct(view: memoryview, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """A Thrift struct: field number -> value, and the place behind it; ValueError on what no page header holds."""
    if depth > 3:
        raise ValueError("structs within structs")
    fields: dict[int, Any] = {}
    number = 0
    while head := view[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(view, at)
        if kind <= 2:
            fields[number] = kind == 1
        elif kind == 12:
            fields[number], at = _struct(view, at, depth + 1)
        elif kind == 8:  # the statistics' least and greatest value
            size, at = _varint(view, at)
            at += size
        elif 4 <= kind <= 6:
            fields[number], at = _integer(view, at)
        else:
            raise ValueError(f"a field of kind {kind}")
    return fields, at + 1


def _integer(view: memoryview, at: int) -> tuple[int, int]:
    """A signed integer, and the place behind it."""
    value = view[at]
    if value < 128:
        at += 1
    else:
        value, at = _varint(view, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """An unsigned integer of up to 64 bits, and the place behind it."""
    value = shift = 0
    while shift < 64:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("an integer of more than 64 bits")
