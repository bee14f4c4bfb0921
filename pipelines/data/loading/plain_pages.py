"""Reading plainly encoded numbers without Arrow's decoder: this takes less CPU time, and a column fits the cache.

Numbers written without a dictionary and without nulls lie in the file as in an array. Arrow copies them three times, all columns of a row
group before the first is used. Here a page is decompressed, and the result is the array.

    page            header, body: [definition levels] values      (page_headers.py)

Anything else (another encoding or compression, nulls, sizes that do not add up, a wrong checksum) gives None and is left to Arrow,
which reads all of Parquet and reports what is wrong with a file. No number in the file is trusted.

Source: Parquet's file format, https://parquet.apache.org/docs/file-format/data-pages/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparkring.pipelines.data.loading.chunk_reads import ChunkReads
from sparkring.pipelines.data.loading.page_headers import DATA_PAGE, DATA_PAGE_V2, NONSENSE, PageHeader, read_varint

LARGEST_BYTES = 8 << 20
"""Largest column chunk: its pages, their decompressed form and the joined values are in memory together."""
FEWEST_ROWS = 1 << 14
"""Fewest rows of a page but the last: for smaller pages Arrow needs less time per page than Python."""
DTYPES: Final = {"FLOAT": "<f4", "DOUBLE": "<f8", "INT32": "<i4", "INT64": "<i8"}
TYPES: Final = {"float32": pa.float32(), "float64": pa.float64(), "int32": pa.int32(), "int64": pa.int64()}
ENCODINGS: Final = {"PLAIN", "RLE", "BIT_PACKED"}
"""Encodings of a plain column: PLAIN of values, RLE of levels, and BIT_PACKED of levels by old writers."""
PLAIN, RLE = 0, 3
MAGIC: Final = b"PAR1"
"""The first bytes of a file."""


class PlainPages:
    """The columns with plain pages of one open file. Do not share it between threads: it moves the file's position."""

    def __init__(self, source: pa.NativeFile, parquet: pq.ParquetFile) -> None:
        self._reads, self._metadata, self._snappy = ChunkReads(source), parquet.metadata, pa.Codec("snappy")
        leaves = [parquet.schema.column(place) for place in range(len(parquet.schema))]
        paths, types = Counter(leaf.path for leaf in leaves), parquet.schema_arrow
        names = Counter(types.names)
        self._columns = {leaf.name: _Column(place, types.field(leaf.name).type, nullable=leaf.max_definition_level == 1)
                         for place, leaf in enumerate(leaves)
                         if leaf.name == leaf.path and paths[leaf.path] == names[leaf.name] == 1  # "a.b" may be b in a struct a, too
                         and leaf.max_repetition_level == 0 and leaf.max_definition_level <= 1}

    def may_hold(self, group: int, name: str, dtype: str) -> bool:
        """Whether the footer says that a column of a row group holds plain values of ``dtype``."""
        rows = self._metadata.row_group(group)
        if name not in self._columns or rows.num_rows < FEWEST_ROWS:
            return False
        column = self._columns[name]
        if TYPES.get(dtype) != column.type:
            return False
        chunk = rows.column(column.place)
        return bool(DTYPES.get(chunk.physical_type) == np.dtype(dtype).newbyteorder("<").str and set(chunk.encodings) <= ENCODINGS
                    and chunk.compression in ("UNCOMPRESSED", "SNAPPY") and not chunk.has_dictionary_page
                    and chunk.data_page_offset >= len(MAGIC) and 0 < chunk.total_compressed_size <= LARGEST_BYTES)

    def expect(self, group: int, names: Iterable[str]) -> None:
        """Expect ``values`` of these columns next, for which ``may_hold`` is true; no more memory is held for others."""
        chunks = (self._metadata.row_group(group).column(self._columns[name].place) for name in names)
        self._reads.expect((chunk.data_page_offset, chunk.total_compressed_size) for chunk in chunks)

    def values(self, group: int, name: str, *, start: int, stop: int) -> NDArray[np.generic] | None:
        """Values [start, stop) of a column for which ``may_hold`` is true; None: leave its pages to Arrow.

        Raises:
            OSError: the file cannot be read.
        """
        column, rows = self._columns[name], self._metadata.row_group(group)
        chunk = rows.column(column.place)
        data = self._reads.read(chunk.data_page_offset, chunk.total_compressed_size)
        codec = self._snappy if chunk.compression == "SNAPPY" else None
        dtype, compressed = np.dtype(DTYPES[chunk.physical_type]), codec is not None
        view, at, first = memoryview(data).cast("B"), 0, 0
        parts: list[NDArray[np.generic]] = []
        try:
            while first < stop:
                page = self._page(view, at, rows_left=rows.num_rows - first, column=column, dtype=dtype, compressed=compressed)
                if first + page.rows > start:
                    if page.header.found_crc(view) != page.header.crc:
                        return None
                    parts.append(page.values(data, codec, dtype)[max(0, start - first):stop - first])
                first, at = first + page.rows, page.header.end
            if first < rows.num_rows:  # a header that ends early would shift the values and the next header
                self._page(view, at, rows_left=rows.num_rows - first, column=column, dtype=dtype, compressed=compressed)
            elif at != len(view):
                return None
        except (*NONSENSE, OSError):  # OSError: Snappy's
            return None
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @staticmethod
    def _page(view: memoryview, at: int, *, rows_left: int, column: _Column, dtype: np.dtype[np.generic], compressed: bool) -> _Page:
        page = _Page.read(view, at, itemsize=dtype.itemsize, nullable=column.nullable, compressed=compressed)
        if not min(FEWEST_ROWS, rows_left) <= page.rows <= rows_left:
            raise ValueError(f"a page of {page.rows} rows")
        return page


@dataclass(frozen=True)
class _Column:
    """A leaf of the schema that is a top-level column."""

    place: int
    type: pa.DataType
    """Arrow's."""
    nullable: bool


@dataclass(frozen=True)
class _Page:
    """The position of a page's values in its column chunk."""

    header: PageHeader
    rows: int
    begin: int
    """First byte of the part of the body that may be compressed."""
    size: int
    """Bytes of this part once it is decompressed."""
    levels: bytes
    """The first bytes that this part must have."""
    compressed: bool

    @classmethod
    def read(cls, view: memoryview, at: int, *, itemsize: int, nullable: bool, compressed: bool) -> _Page:
        """Read the header at ``at``; one of ``NONSENSE`` if the page is of another kind, or its header makes no sense.

        All sizes must agree, even of a page that is skipped: the positions of later rows depend on its row count.
        """
        header = PageHeader.read(view, at)
        body, size, end = header.begin, header.size, header.end
        if header.kind == DATA_PAGE:
            rows, encoding, of_levels, _ = (header.fields[5][field] for field in (1, 2, 3, 4))  # all are required
            levels = _no_null(rows) if nullable else b""
            if nullable:
                if of_levels != RLE:
                    raise ValueError(f"levels of encoding {of_levels}")
                levels = len(levels).to_bytes(4, "little") + levels
        elif header.kind == DATA_PAGE_V2:
            stated = header.fields[8]
            rows, encoding = stated[1], stated[4]
            levels = _no_null(rows) if nullable else b""
            if stated[2] or stated[6] or stated[5] != len(levels) or view[body:body + len(levels)] != levels:
                raise ValueError("nulls, or lists")
            body, size, levels, compressed = body + stated[5], size - stated[5], b"", compressed and stated.get(7, True)
        else:
            raise ValueError(f"a page of kind {header.kind}")
        if encoding != PLAIN or not 0 <= body <= end or size != rows * itemsize + len(levels):
            raise ValueError(f"values of encoding {encoding}, {size} bytes for {rows}")
        held = read_varint(view, body)[0] if compressed else end - body  # the size by Snappy; Arrow would leave the rest uninitialised
        if held != size:
            raise ValueError(f"a page that holds {held} bytes, not {size}")
        return cls(header, rows, body, size, levels, bool(compressed))

    def values(self, data: pa.Buffer, codec: pa.Codec | None, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        """(rows,) without a copy if nothing is compressed; ValueError if there are more or fewer, as with nulls."""
        body = data.slice(self.begin, self.header.end - self.begin)
        if self.compressed and codec is not None:
            body = codec.decompress(body, self.size)
        skipped = len(self.levels)
        if len(body) - skipped != self.rows * dtype.itemsize or memoryview(body)[:skipped].tobytes() != self.levels:
            raise ValueError(f"{len(body)} bytes for {self.rows} values, or nulls")
        return np.frombuffer(body, dtype=dtype, offset=skipped)


def _no_null(rows: int) -> bytes:
    """The definition levels of ``rows`` values without nulls: one run of ones, as all writers encode it."""
    run, text = rows << 1, bytearray()
    while run > 127:
        text.append(run & 127 | 128)
        run >>= 7
    return bytes((*text, run, 1))
