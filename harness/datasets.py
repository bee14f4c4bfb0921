"""Small committed dataset versions of random rows, written with pyarrow alone: for tests of what reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from harness.parquet_files import with_checksums
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split, content_id
from sparkring.pipelines.data.dataset.preprocessing import CategoricalFeature, NumericFeature, Preprocessing
from sparkring.pipelines.data.dataset.row_schema import WEIGHT, DataField, TensorSpec
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.order.rowhash import rows_digest, to_hex

NUMERIC = ("height", "weight", "age")
VOCABULARY = ("blue", "green", "red")
WEIGHT_FIELD = "importance"
TARGET, SLOPES, CONSTANT = "target", (2.0, -1.0, 0.5), 3.0
"""The number of a row that is linear in its other ones, but for noise."""


def write_dataset(folder: Path, files: Sequence[Sequence[int]], *, validation_rows: int = 257, test_rows: int = 0, seed: int = 0,
                  nan_row: int | None = None, weighted: bool = False, noise: float | None = None) -> Dataset:
    """Commit version 1 of a dataset whose train split has these row groups.

    Args:
        folder: The dataset's folder.
        files: For each file the rows of its row groups; zeros are allowed.
        validation_rows: Rows of the validation split, in one file.
        test_rows: Rows of the test split, in one file; 0: there is none.
        seed: Of the random values.
        nan_row: Id of a row whose numbers are NaN.
        weighted: Whether rows have weights: 0 for each fifth row, else a number below 5 that follows from the row's id.
        noise: Rows have a field ``TARGET``, whose deviation from a line is this on average; None: they do not.
    """
    dataset = Dataset(str(folder))
    generator = np.random.default_rng(seed)
    fields = (DataField(name="row_id", dtype="int64"), DataField(name="late", dtype="int8"),
              *(DataField(name=name, dtype="float32") for name in NUMERIC), DataField(name="colour", dtype="int32"),
              *([DataField(name=WEIGHT_FIELD, dtype="float64")] if weighted else []),
              *([DataField(name=TARGET, dtype="float64")] if noise is not None else []))
    splits, first = {}, 0
    layouts = {"train": files, "validation": [[validation_rows]], **({"test": [[test_rows]]} if test_rows else {})}
    for name, layout in layouts.items():
        splits[name] = _write_split(folder, name, layout, first_id=first, generator=generator, nan_row=nan_row, weighted=weighted,
                                    noise=noise)
        first += splits[name].rows
    manifest = Manifest(
        version=1, parent=None, data_id="d1", content_id=content_id(fields, splits), recipe_id="r1", created_at="2026-01-01T00:00:00Z",
        code_version="test", row_id="row_id", label="late", fields=fields, splits=splits, recipe={}, source={},
        weight=WEIGHT_FIELD if weighted else None,
        tensors=(TensorSpec(name="numeric", dtype="float32", fields=NUMERIC),
                 TensorSpec(name="categorical", dtype="int64", fields=("colour",)),
                 TensorSpec(name="label", dtype="float32", fields=("late",), stacked=False),
                 TensorSpec(name="row_id", dtype="int64", fields=("row_id",), stacked=False),
                 *([TensorSpec(name=WEIGHT, dtype="float64", fields=(WEIGHT_FIELD,), stacked=False)] if weighted else [])),
        preprocessing=Preprocessing(numeric=tuple(NumericFeature(column=name, mean=0.0, std=1.0, nulls=0) for name in NUMERIC),
                                    categorical=(CategoricalFeature(column="colour", vocabulary=VOCABULARY),),
                                    train_rows=splits["train"].rows))
    dataset.commit(manifest)
    return dataset


def _write_split(folder: Path, name: str, layout: Sequence[Sequence[int]], *, first_id: int, generator: np.random.Generator,
                 nan_row: int | None, weighted: bool, noise: float | None) -> Split:
    written, tables = [], []
    for number, groups in enumerate(layout):
        path = Path("data/d1") / name / f"part-{number}.parquet"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        table = _table(sum(groups), first_id=first_id, generator=generator, nan_row=nan_row)
        if weighted:
            ids = table["row_id"].to_numpy()
            table = table.append_column(pa.field(WEIGHT_FIELD, pa.float64(), nullable=False), [ids % 5 * (1 + np.sin(ids) ** 2) / 2])
        if noise is not None:
            target = _target(table, noise * generator.standard_normal(len(table)))
            table = table.append_column(pa.field(TARGET, pa.float64(), nullable=False), [target])
        _write_groups(folder / path, table, groups)
        footer = pq.ParquetFile(folder / path).metadata
        written.append(DataFile(
            path=str(path), bytes=(folder / path).stat().st_size, sha256=hashlib.sha256((folder / path).read_bytes()).hexdigest(),
            row_groups=tuple(groups),
            row_group_bytes=tuple(_compressed_bytes(footer.row_group(group)) for group in range(footer.num_row_groups))))
        tables.append(table)
        first_id += table.num_rows
    whole = pa.concat_tables(tables)
    return Split(files=tuple(written), rows=whole.num_rows, positives=int(np.sum(whole["late"].to_numpy())),
                 rows_digest=to_hex(rows_digest(whole["row_id"].to_numpy())))


def _table(rows: int, *, first_id: int, generator: np.random.Generator, nan_row: int | None) -> pa.Table:
    numeric = generator.standard_normal((rows, len(NUMERIC))).astype(np.float32)
    colour = generator.integers(0, len(VOCABULARY) + 1, rows).astype(np.int32)
    late = (numeric @ np.array([1.0, -0.5, 0.25], dtype=np.float32) + 0.5 * colour + generator.standard_normal(rows) > 1.0).astype(np.int8)
    if nan_row is not None and nan_row in range(first_id, first_id + rows):
        numeric[nan_row - first_id] = np.nan
    columns: dict[str, NDArray[Any]] = {
        "row_id": np.arange(first_id, first_id + rows, dtype=np.int64), "late": late,
        **{name: numeric[:, place] for place, name in enumerate(NUMERIC)}, "colour": colour}
    return pa.table(columns, schema=pa.schema([pa.field(name, pa.from_numpy_dtype(values.dtype), nullable=False)
                                               for name, values in columns.items()]))


def _target(table: pa.Table, noise: NDArray[np.float64]) -> NDArray[np.float64]:
    numbers = np.stack([table[name].to_numpy().astype(np.float64) for name in NUMERIC], axis=1)
    target: NDArray[np.float64] = numbers @ SLOPES + CONSTANT + noise
    return target


def _compressed_bytes(group: pq.RowGroupMetaData) -> int:
    return sum(group.column(number).total_compressed_size for number in range(group.num_columns))


def _write_groups(path: Path, table: pa.Table, groups: Sequence[int]) -> None:
    """Row groups of exactly these sizes, empty ones included."""
    with pq.ParquetWriter(path, table.schema) as writer:
        start = 0
        for rows in groups:
            writer.write_table(table.slice(start, rows), row_group_size=max(rows, 1))
            start += rows
    path.write_bytes(with_checksums(path.read_bytes()))
