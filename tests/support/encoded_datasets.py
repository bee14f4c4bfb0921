"""A small committed dataset version whose rows are images, tokens and arrays, each cell as Petastorm's own codecs write it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from petastorm.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec
from petastorm.unischema import UnischemaField

from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import Augment, DataField, ImageSpec, TensorSpec
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.order.rowhash import rows_digest, to_hex

FIELDS = (
    DataField(name="row_id", dtype="int64"),
    DataField(name="image", dtype="uint8", shape=(8, 6, 3), codec="png"),
    DataField(name="tokens", dtype="uint16", shape=(5,), codec="ndarray"),
    DataField(name="ragged", dtype="float32", shape=(None,), codec="ndarray"),
    DataField(name="packed", dtype="float64", shape=(2, 3), codec="compressed_ndarray"),
)


@dataclass(frozen=True)
class Rows:
    """What was written, by row id."""

    images: NDArray[np.uint8]
    """(rows, 8, 6, 3)"""
    tokens: NDArray[np.uint16]
    """(rows, 5)"""
    ragged: list[NDArray[np.float32]]
    packed: NDArray[np.float64]
    """(rows, 2, 3)"""


def write_encoded_dataset(folder: Path, groups: Sequence[int], *, augment: Augment | None = None,
                          other_header: int | None = None) -> tuple[Dataset, Rows]:
    """Commit version 1: one file with these row groups; row ids count up. One row's tokens may have a header of another length."""
    generator, count = np.random.default_rng(0), sum(groups)
    rows = Rows(
        images=generator.integers(0, 256, (count, 8, 6, 3), dtype=np.uint8),
        tokens=generator.integers(0, 65536, (count, 5), dtype=np.uint16),
        ragged=[generator.standard_normal(row % 7).astype(np.float32) for row in range(count)],
        packed=generator.standard_normal((count, 2, 3)))
    table = pa.table({
        "row_id": np.arange(count, dtype=np.int64),
        "image": _cells("image", np.uint8, (8, 6, 3), CompressedImageCodec("png"), rows.images),
        "tokens": _with_other_header(_cells("tokens", np.uint16, (5,), NdarrayCodec(), rows.tokens), rows.tokens, other_header),
        "ragged": _cells("ragged", np.float32, (None,), NdarrayCodec(), rows.ragged),
        "packed": _cells("packed", np.float64, (2, 3), CompressedNdarrayCodec(), rows.packed)})
    path = folder / "data/d1/train/part-0.parquet"
    path.parent.mkdir(parents=True)
    with pq.ParquetWriter(path, table.schema, use_dictionary=False) as writer:
        start = 0
        for size in groups:
            writer.write_table(table.slice(start, size))
            start += size
    content = path.read_bytes()
    file = DataFile(path="data/d1/train/part-0.parquet", bytes=len(content), sha256=hashlib.sha256(content).hexdigest(),
                    row_groups=tuple(groups), row_group_bytes=(1,) * len(groups))
    dataset = Dataset(str(folder))
    dataset.commit(Manifest(
        version=1, parent=None, data_id="d1", content_id="c", recipe_id="r", created_at="2026-01-01T00:00:00Z", code_version="test",
        row_id="row_id", label="tokens", task="next_token", classes=65536, fields=FIELDS, recipe={}, source={},
        tensors=(TensorSpec(name="image", dtype="float32", fields=("image",), stacked=False, shape=(3, 8, 6),
                            image=ImageSpec(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), augment=augment)),
                 TensorSpec(name="tokens", dtype="int64", fields=("tokens",), stacked=False, shape=(5,)),
                 TensorSpec(name="ragged", dtype="float32", fields=("ragged",), stacked=False, shape=(4,), pad=-1.0),
                 TensorSpec(name="packed", dtype="float64", fields=("packed",), stacked=False, shape=(2, 3)),
                 TensorSpec(name="row_id", dtype="int64", fields=("row_id",), stacked=False)),
        splits={"train": Split(files=(file,), rows=count, rows_digest=to_hex(rows_digest(np.arange(count))))},
        preprocessing=Preprocessing(numeric=(), categorical=(), train_rows=count)))
    return dataset, rows


def _cells(name: str, kind: type, shape: tuple[int | None, ...], codec: object, values: Sequence[NDArray[np.generic]] | NDArray[np.generic],
           ) -> pa.Array:
    field = UnischemaField(name, kind, shape, codec, nullable=False)
    return pa.array([bytes(codec.encode(field, value)) for value in values], pa.binary())  # type: ignore[attr-defined]


def _with_other_header(cells: pa.Array, values: NDArray[np.uint16], row: int | None) -> pa.Array:
    if row is None:
        return cells
    cell = io.BytesIO()
    np.lib.format.write_array(cell, values[row], version=(2, 0))
    return pa.array([cell.getvalue() if number == row else given.as_py() for number, given in enumerate(cells)], pa.binary())
