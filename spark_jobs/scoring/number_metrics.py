"""Exact metrics of predicted numbers. Spark's tasks sum over their rows; ``evaluation/regression.py`` divides once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.pipelines.data.dataset.row_schema import Standardisation
from sparkring.pipelines.training.evaluation.regression import NUM_SUMS, all_sums, regression_metrics
from sparkring.pipelines.training.evaluation.totals import Metrics
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.scoring.columns import PREDICTION


def evaluate_numbers(predicted: DataFrame, *, label: str, fitted: Standardisation) -> Metrics:
    """Evaluate predictions of a number.

    Args:
        predicted: ``prediction`` and the label, both in the label's own units.
        label: The label's column.
        fitted: The mean and deviation of train labels.
    Returns:
        Those of ``RegressionMetrics``.
    Raises:
        DatasetError: there are no rows.
        NotFinite: a prediction is not finite.
    """
    pairs = predicted.select(*((column.cast("double") - fitted.mean) / fitted.std for column in (sf.col(PREDICTION), named(label))))
    summed = pairs.toDF("predicted", "label").mapInArrow(_sum_batches, "place int, value double")
    sums = np.zeros(NUM_SUMS)
    for row in summed.groupBy("place").agg(sf.sum("value").alias("value")).collect():
        sums[row["place"]] = row["value"]
    return regression_metrics(sums, fitted).model_dump(mode="json")


def mean_of_train(train: DataFrame, test: DataFrame, *, label: str, fitted: Standardisation) -> DataFrame:
    """Test rows with the mean of all train labels as their prediction.

    Args:
        train: Rows of the train split; an append may have added to those that ``fitted`` was fitted on.
        test: Rows of the test split.
        label: The label's column.
        fitted: A mean of labels near that of the train split, from which they are summed up.
    """
    shift = train.agg(sf.avg(named(label) - fitted.mean)).collect()[0][0]
    return test.select(sf.lit(fitted.mean + shift).alias(PREDICTION), named(label))


def _sum_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: the sums of its rows that are not 0."""
    sums = np.zeros(NUM_SUMS)
    for batch in batches:
        sums += all_sums(*(column.to_numpy(zero_copy_only=False) for column in batch.columns))
    there = np.flatnonzero(sums)
    yield pa.RecordBatch.from_pydict({"place": pa.array(there.astype(np.int32)), "value": pa.array(sums[there])})
