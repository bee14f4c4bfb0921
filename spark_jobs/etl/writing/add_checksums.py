"""Page checksums for a Parquet file whose writer left them out: a copy in which each page header holds the CRC-32 of its page.

The Parquet 1.13 of Spark 3.5 writes them for pages of format 1 alone; prepare writes format 2 (``write_dataset.py``). Arrow 14, which
such platforms have, cannot write them from Python. Page bodies are copied as they are, so values and encodings stay. Page index and
Bloom filters are left out: none of our readers uses them, and they point at pages that move.

Source: parquet.thrift, https://github.com/apache/parquet-format.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from isal import isal_zlib

from sparkring.pipelines.data.loading.page_checksums import first_byte
from sparkring.pipelines.data.loading.page_headers import HEADER_BYTES
from sparkring.spark_jobs.etl.writing.thrift_compact import I32, Struct, read_struct, structs, write_struct

MAGIC = b"PAR1"
PAGE_BYTES, PAGE_CRC = 3, 4
ROW_GROUPS, COLUMNS, COLUMN = 4, 1, 3
CODEC, CHUNK_BYTES, DATA_PAGE, DICTIONARY_PAGE = 4, 7, 9, 11
GROUP_TOTALS, CHUNK_TOTALS = (2, 6), (6, CHUNK_BYTES)
"""Sizes that count page headers too."""
GROUP_OFFSET, CHUNK_OFFSET = 5, 2
CHUNK_POINTERS, COLUMN_POINTERS = (4, 5, 6, 7), (14, 15)
"""To the page index, and to a Bloom filter."""


def has_checksums(source: pa.NativeFile) -> bool:
    """Whether the first page of a file has a checksum; True if it has no page."""
    metadata = pq.ParquetFile(source).metadata
    if not metadata.num_row_groups:
        return True
    source.seek(first_byte(metadata.row_group(0).column(0)))
    header, _ = read_struct(_view(source, HEADER_BYTES))
    return PAGE_CRC in header


def copy_with_checksums(source: pa.NativeFile, sink: IO[bytes]) -> None:
    """Copy a Parquet file, one column chunk at a time, and give each page header the CRC-32 of its page.

    Args:
        source: The file.
        sink: An empty file.
    """
    footer = _footer(source)
    sink.write(MAGIC)
    for group in structs(footer[ROW_GROUPS]):
        begin = sink.tell()
        grown = sum(_copy_chunk(chunk, source, sink) for chunk in structs(group[COLUMNS]))
        _add(group, GROUP_TOTALS, grown)
        if GROUP_OFFSET in group:
            _set(group, GROUP_OFFSET, begin)
    encoded = write_struct(footer)
    sink.write(encoded + len(encoded).to_bytes(4, "little") + MAGIC)


def _footer(source: pa.NativeFile) -> Struct:
    end = source.size() - len(MAGIC) - 4
    source.seek(end)
    size = int.from_bytes(source.read(4), "little")
    source.seek(end - size)
    return read_struct(_view(source, size))[0]


def _copy_chunk(chunk: Struct, source: pa.NativeFile, sink: IO[bytes]) -> int:
    """Copy the pages of a column chunk, and correct what the footer says about it; returns by how many bytes it grew."""
    column: Struct = chunk[COLUMN][1]
    size: int = column[CHUNK_BYTES][1]
    first = min(column[offset][1] for offset in (DATA_PAGE, DICTIONARY_PAGE) if column.get(offset, (0, 0))[1])
    source.seek(first)
    view, begin, at = _view(source, size), sink.tell(), 0
    moved: dict[int, int] = {}
    while at < size:
        header, body = read_struct(view, at)
        end = body + header[PAGE_BYTES][1]
        crc = isal_zlib.crc32(view[body:end])
        header[PAGE_CRC] = (I32, crc - (1 << 32) if crc >> 31 else crc)
        moved[first + at] = sink.tell()
        sink.write(write_struct(header))
        sink.write(view[body:end])
        at = end
    for offset in (DATA_PAGE, DICTIONARY_PAGE):
        if offset in column and column[offset][1] in moved:
            _set(column, offset, moved[column[offset][1]])
    _set(chunk, CHUNK_OFFSET, column[DATA_PAGE][1])
    for struct, pointers in ((chunk, CHUNK_POINTERS), (column, COLUMN_POINTERS)):
        for pointer in pointers:
            struct.pop(pointer, None)
    grown = sink.tell() - begin - size
    _add(column, CHUNK_TOTALS, grown)
    return grown


def _view(source: pa.NativeFile, size: int) -> memoryview:
    return memoryview(source.read_buffer(size)).cast("B")


def _add(struct: Struct, fields: Iterable[int], amount: int) -> None:
    for field in fields:
        if field in struct:
            _set(struct, field, struct[field][1] + amount)


def _set(struct: Struct, field: int, value: int) -> None:
    struct[field] = (struct[field][0], value)
