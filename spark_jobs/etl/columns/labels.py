"""The classes of a label, which are its values in the train split, and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegralType

from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.preprocessing import ClassType
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.spark.versions.arrow_frames import frame_of
from sparkring.spark_jobs.spark.versions.text import is_valid_utf8

_VALUE, _NUMBER = "__label_value", "__label_number"


def class_type(examples: DataFrame, label: str) -> ClassType:
    """The type that the label's values have in the source."""
    found = examples.schema[label].dataType
    return next((name for name in get_args(ClassType) if found.simpleString() == name), "string")


def make_binary(label: str, *, fraction: bool) -> str:
    """What to do about a label of the task binary with other values than 0 and 1; ``fraction``: whether its type has fractions."""
    two = f"make it 0 or 1 in the query, e.g. CAST({label} > 15 AS INT) AS {label}, or null for rows to leave out"
    if fraction:
        return f"for measured numbers set prepare.task: regression; for two classes {two}."
    return f"{two}. For numbers of classes set prepare.task: multiclass; for measured numbers set prepare.task: regression."


def fit_classes(examples: DataFrame, label: str, *, split: Column,
                train_sets: Sequence[Sequence[str]] = (("train",),)) -> tuple[str, ...]:
    """Return the label's values as texts: numbers in ascending order, texts in alphabetical order.

    Args:
        examples: Rows of all splits; none has a null label.
        label: Column of whole numbers or texts.
        split: The split of a row.
        train_sets: Names of the splits that train together; of a version in folds, a set for each fold.
    Raises:
        SourceError: the train split has fewer than two values, a held-out row has a value that no train row has, or a
            value is not UTF-8 text.
    """
    counts = examples.groupBy(named(label).cast("string").alias("value")).agg(
        sf.count(sf.lit(1)).alias("rows"),
        *(sf.count_if(split.isin(*names)).alias(f"train_{place}") for place, names in enumerate(train_sets))).withColumn(
        "is_text", is_valid_utf8("value")).collect()
    broken = next((row for row in counts if not row["is_text"]), None)
    if broken is not None:
        raise SourceError(f"label {label} holds bytes that are not UTF-8 text in {broken['rows']} rows, shown as {broken['value']!r}; "
                          "correct them in the source, or decode them in the query.")
    whole = isinstance(examples.schema[label].dataType, IntegralType)
    in_train = {row["value"]: all(row[f"train_{place}"] for place in range(len(train_sets))) for row in counts}
    classes = sorted((value for value, there in in_train.items() if there), key=int if whole else None)
    unseen = min((row for row in counts if not in_train[row["value"]]), key=lambda row: row["value"], default=None)
    if unseen is not None:
        where = "rows of fewer than two folds" if len(train_sets) > 1 else "held-out rows and in no train row"
        raise SourceError(f"label {label} is {unseen['value']!r} in {unseen['rows']} {where}, so it cannot be learned; change "
                          "prepare.split, or leave those rows out in the query.")
    if len(classes) < 2:
        raise SourceError(f"label {label} is {classes[0]!r} in all train rows, so there is nothing to predict; "
                          "change the query or prepare.split.")
    return tuple(classes)


def require_known_classes(examples: DataFrame, label: str, classes: tuple[str, ...]) -> None:
    """Check that every label is a known class.

    Raises:
        SourceError: a row's label is not one of ``classes``.
    """
    unknown = ~named(label).cast("string").isin(*classes)
    count, example = examples.agg(sf.count_if(unknown), sf.min(sf.when(unknown, named(label).cast("string")))).collect()[0]
    if count:
        raise SourceError(f"label {label} is {example!r} in {count} new rows, but the version to which they would be appended knows only "
                          f"{', '.join(classes)}; prepare a whole version instead, without --append.")


def number_classes(frame: DataFrame, label: str, classes: tuple[str, ...]) -> DataFrame:
    """Replace the label by the number of its class, from 0; other columns pass through."""
    entries = frame_of(frame.sparkSession, pa.table({
        _VALUE: pa.array(classes, pa.string()), _NUMBER: pa.array(range(len(classes)), pa.int32())}))
    joined = frame.join(sf.broadcast(entries), named(label).cast("string") == sf.col(_VALUE), "left")
    return joined.select([sf.col(_NUMBER).alias(label) if name == label else named(name) for name in frame.columns])
