"""The dataset of the studies: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels as a committed version. No Spark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from harness.split_file import write_split
from sparkring.pipelines.data.dataset.manifest import Manifest, Split, content_id
from sparkring.pipelines.data.dataset.preprocessing import NumericFeature, Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.dataset.versions import Dataset

TRAIN_ROWS, GROUP_ROWS = 1437, 48
"""The others are held out; rows of a row group."""
PIXELS = tuple(f"pixel{number}" for number in range(64))
CLASSES = tuple(str(digit) for digit in range(10))


def write_digits(folder: Path) -> Dataset:
    """Commit version 1: pixels as numbers of mean 0 and spread 1, over all pixels; rows in an order of chance, which is always the same.

    Source: Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI repository, its test part.
    """
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    scaled = ((pixels - pixels.mean()) / pixels.std()).astype(np.float32)[order]
    fields = (DataField(name="row_id", dtype="int64"), DataField(name="digit", dtype="int64"),
              *(DataField(name=name, dtype="float32") for name in PIXELS))
    rows = _table(scaled, digits[order].astype(np.int64), fields)
    splits = {"train": _write(folder, "train", rows.slice(0, TRAIN_ROWS)), "validation": _write(folder, "validation", rows[TRAIN_ROWS:])}
    dataset = Dataset(str(folder))
    dataset.commit(Manifest(
        version=1, parent=None, data_id="d1", content_id=content_id(fields, splits), recipe_id="r1", created_at="2026-01-01T00:00:00Z",
        code_version="study", row_id="row_id", label="digit", task="multiclass", classes=len(CLASSES), fields=fields, splits=splits,
        recipe={}, source={},
        tensors=(TensorSpec(name="numeric", dtype="float32", fields=PIXELS), TensorSpec(name="categorical", dtype="int64", fields=()),
                 TensorSpec(name="label", dtype="int64", fields=("digit",), stacked=False),
                 TensorSpec(name="row_id", dtype="int64", fields=("row_id",), stacked=False)),
        preprocessing=Preprocessing(
            numeric=tuple(NumericFeature(column=name, mean=0.0, std=1.0, nulls=0) for name in PIXELS), categorical=(),
            train_rows=TRAIN_ROWS, classes=CLASSES)))
    return dataset


def _table(pixels: NDArray[np.float32], digits: NDArray[np.int64], fields: tuple[DataField, ...]) -> pa.Table:
    columns = {"row_id": np.arange(len(digits)), "digit": digits, **{name: pixels[:, place] for place, name in enumerate(PIXELS)}}
    return pa.table(columns, schema=pa.schema([pa.field(field.name, pa.from_numpy_dtype(np.dtype(field.dtype)), nullable=False)
                                               for field in fields]))


def _write(folder: Path, name: str, rows: pa.Table) -> Split:
    groups = [min(GROUP_ROWS, len(rows) - first) for first in range(0, len(rows), GROUP_ROWS)]
    return write_split(folder, name, rows, groups)
