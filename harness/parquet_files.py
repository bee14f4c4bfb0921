"""Parquet files with page checksums, as ``prepare`` writes them, and where their pages lie."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkring.pipelines.data.loading.page_checksums import first_byte
from sparkring.spark_jobs.etl.writing.add_checksums import PAGE_BYTES, copy_with_checksums
from sparkring.spark_jobs.etl.writing.thrift_compact import Struct, read_struct


def write_parquet(table: pa.Table, path: Path, **options: Any) -> None:
    """As ``pyarrow.parquet.write_table``, with page checksums, which Arrow 14 cannot write from Python."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    path.write_bytes(with_checksums(sink.getvalue()))


def with_checksums(data: bytes) -> bytes:
    """The same Parquet file with the CRC-32 of each page in its header."""
    sink = io.BytesIO()
    copy_with_checksums(pa.BufferReader(data), sink)
    return sink.getvalue()


def pages(data: bytes) -> list[tuple[Struct, int, int]]:
    """(header, first byte of the body, one past its last byte) of each page of a file."""
    metadata, view, found = pq.ParquetFile(pa.BufferReader(data)).metadata, memoryview(data), []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            at = first_byte(chunk)
            end = at + chunk.total_compressed_size
            while at < end:
                header, body = read_struct(view, at)
                at = body + header[PAGE_BYTES][1]
                found.append((header, body, at))
    return found
