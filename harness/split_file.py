"""A split of a test's dataset: one Parquet file with row groups of given sizes, and arrays as the cells of Petastorm's NdarrayCodec."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparkring.pipelines.data.dataset.manifest import DataFile, Split
from sparkring.pipelines.data.order.rowhash import rows_digest, to_hex


def write_split(folder: Path, name: str, table: pa.Table, groups: Sequence[int]) -> Split:
    """Write ``table``, which has a column ``row_id``, below the dataset's folder; ``groups`` are the rows of its row groups."""
    path = folder / "data/d1" / name / "part-0.parquet"
    path.parent.mkdir(parents=True)
    with pq.ParquetWriter(path, table.schema) as writer:
        for start, size in zip(np.cumsum([0, *groups[:-1]]), groups, strict=True):
            writer.write_table(table.slice(int(start), size))
    content, footer = path.read_bytes(), pq.ParquetFile(path).metadata
    sizes = tuple(sum(footer.row_group(group).column(column).total_compressed_size for column in range(footer.num_columns))
                  for group in range(footer.num_row_groups))
    file = DataFile(path=str(path.relative_to(folder)), bytes=len(content), sha256=hashlib.sha256(content).hexdigest(),
                    row_groups=tuple(groups), row_group_bytes=sizes)
    return Split(files=(file,), rows=table.num_rows, rows_digest=to_hex(rows_digest(table["row_id"].to_numpy())))


def cell(array: NDArray[Any]) -> bytes:
    """An array as it is stored in a cell: as a .npy file."""
    stored = io.BytesIO()
    np.save(stored, array)
    return stored.getvalue()
