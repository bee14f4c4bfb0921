"""A dataset whose label is a number: version 2 of one that ``write_dataset`` made. No Spark, no ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparkring.pipelines.data.dataset.row_schema import Standardisation
from sparkring.pipelines.data.dataset.versions import Dataset


def as_regression(dataset: Path, label: str = "weight") -> tuple[Dataset, Standardisation]:
    """Commit version 2: the same files, but this number is the label, and no feature any more."""
    stored = Dataset(str(dataset))
    rows = train_frame(dataset)[label].to_numpy(np.float64)
    fitted, version = Standardisation(mean=float(rows.mean()), std=float(rows.std())), stored.manifest(1)
    numbers = tuple(feature for feature in version.preprocessing.numeric if feature.column != label)
    changed: dict[str, dict[str, Any]] = {
        "numeric": {"fields": tuple(feature.column for feature in numbers)},
        "label": {"dtype": "float64", "fields": (label,), "standard": fitted}}
    stored.commit(version.model_copy(update={
        "version": 2, "parent": 1, "parent_sha256": stored.manifest_sha256(1), "task": "regression", "label": label, "classes": 0,
        "tensors": tuple(spec.model_copy(update=changed.get(spec.name, {})) for spec in version.tensors),
        "preprocessing": version.preprocessing.model_copy(update={"numeric": numbers, "label": fitted})}))
    return stored, fitted


def train_frame(dataset: Path) -> pd.DataFrame:
    """The rows of the train split by their ids."""
    return pd.concat([pd.read_parquet(path) for path in sorted((dataset / "data").rglob("train/*.parquet"))]).set_index("row_id")
