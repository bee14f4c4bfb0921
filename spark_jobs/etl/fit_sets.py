"""Fit everything that rows are encoded by, on the rows that train: once, or in a version in folds once for each fold, without its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from sparkring.conf.schema import PrepareConfig
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.spark_jobs.etl.columns.splits import SPLITS, split_name, train_sets
from sparkring.spark_jobs.etl.encoding.images import fit_images
from sparkring.spark_jobs.etl.fit import fit
from sparkring.spark_jobs.etl.fit_numbers import TrainRows, fit_label

_OTHER_FOLDS = ", or set fewer folds or another key (prepare.split)"


def fit_sets(examples: DataFrame, config: PrepareConfig, rows: Mapping[str, int]) -> tuple[Preprocessing, tuple[Preprocessing, ...]]:
    """Fit on each train set.

    Args:
        examples: The rows of all splits, kept by Spark.
        config: The features, and how rows are split.
        rows: Rows of each split.
    Returns:
        How rows are stored; and of a version in folds, by fold, what its rows and those of all other folds are encoded by.
    Raises:
        SourceError: as the fits raise it.
    """
    if config.folds is None:
        return _fit_on(examples, config, SPLITS[:1], TrainRows(rows["train"])), ()
    whole = _fit_on(examples, config, config.folds.names, TrainRows(_count(rows, config.folds.names), "all folds", ""))
    fitted = tuple(_fit_on(examples, config, names, TrainRows(_count(rows, names), f"all folds but fold {fold}", _OTHER_FOLDS))
                   for fold, names in enumerate(train_sets(config)))
    return suits_all(whole, fitted), fitted


def suits_all(whole: Preprocessing, folds: Sequence[Preprocessing]) -> Preprocessing:
    """How a version in folds stores rows, so that those of each fold can be made of them (``stored_columns.py``). Pure.

    Args:
        whole: Fitted on the rows of all folds.
        folds: Fitted without each fold.
    """
    borders = [sorted({edge for each in folds for edge in each.buckets[place].edges}) for place in range(len(whole.buckets))]
    buckets = (bucket.model_copy(update={"edges": tuple(edges)}) for bucket, edges in zip(whole.buckets, borders, strict=True))
    return whole.model_copy(update={"buckets": tuple(buckets)})


def _fit_on(examples: DataFrame, config: PrepareConfig, names: Sequence[str], rows: TrainRows) -> Preprocessing:
    """Fit on the rows of these splits."""
    features, trains = config.features, split_name(config).isin(*names)
    train = examples.where(trains)
    fitted = fit(train, features, rows=rows, row_id=config.id_column, min_category_rows=config.min_category_rows)
    found: dict[str, Any] = {}
    if features.image:
        found["image"] = fit_images(examples, features.image, train=trains, row_id=config.id_column)
    if config.task == "regression":
        found["label"] = fit_label(train, config.label)
    return fitted.model_copy(update=found)


def _count(rows: Mapping[str, int], names: Sequence[str]) -> int:
    return sum(rows[name] for name in names)
