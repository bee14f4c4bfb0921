"""What an estimator finds out about a DataFrame: what each column is, what becomes of it, and the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, NumericType, StringType

from sparkring.conf.schema import Task
from sparkring.errors import SourceError
from sparkring.estimator.columns import (
    InputColumn,
    as_feature,
    as_label,
    dataset_names,
    feature_columns,
    kind_of,
    require_columns,
)
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.inference.choose import MOST_CLASSES, Choice, Choices, choose
from sparkring.spark_jobs.inference.facts import ColumnFacts, measure
from sparkring.spark_jobs.inference.sections import features_of

LABEL, WEIGHT = "label", "weight"
"""The dataset's columns of the label and of the weight of a row."""
THE_FRAME = "the DataFrame"


@dataclass(frozen=True)
class Asked:
    """What the user has said about the columns."""

    label: str
    features: tuple[str, ...] | None = None
    """None: all but the label and the weight."""
    weight: str | None = None
    classes: bool | None = None
    """Whether the label says a class, or is a number; None: what it looks like."""


@dataclass(frozen=True)
class Found:
    """What was found out about a frame."""

    choices: Choices
    """By the names of the user."""
    columns: tuple[InputColumn, ...]
    """The features."""
    features: dict[str, Any]
    """``prepare.features``."""
    label: ColumnFacts
    weight: str | None

    @property
    def has_image(self) -> bool:
        """Whether one of the features is an image."""
        return "image" in self.features

    def rows_of(self, frame: DataFrame, *, classes: bool | None) -> DataFrame:
        """The dataset's columns of ``frame``: features, label and weight."""
        schema, label = frame.schema, self.choices.label
        target = as_label(label, schema[label].dataType, classes=bool(classes)).alias(LABEL)
        weight = [] if self.weight is None else [named(self.weight).alias(WEIGHT)]
        return frame.select(*feature_columns(schema, self.columns), target, *weight)


def look(frame: DataFrame, asked: Asked) -> Found:
    """Measure the columns of ``frame``, and choose what becomes of each.

    Args:
        frame: The user's rows; read twice.
        asked: What is known of its columns.
    Raises:
        SourceError: a column is missing or comes twice, there are no rows, the label cannot be predicted, or nothing is left to learn
            from.
    """
    asked = _as_spelled(frame, asked)
    kept = {asked.label, asked.weight}
    sources = [name for name in frame.columns if name not in kept] if asked.features is None else list(asked.features)
    require_columns(frame, sources, what=THE_FRAME)
    if asked.label in sources:
        raise SourceError(f"the label {asked.label} is among the features, and a model would learn little else; leave it out of them.")
    schema, names = frame.schema, dataset_names(sources)
    target = as_label(asked.label, schema[asked.label].dataType, classes=False)
    source_of = dict(zip(names, sources, strict=True))
    looked_at = frame.select(*(as_feature(source, schema[source].dataType).alias(name) for name, source in source_of.items()),
                             target.alias(LABEL))
    facts = measure(looked_at, label=LABEL)
    label = replace(facts.label, name=asked.label)
    if asked.classes and label.whole:
        label = replace(label, type=LongType())  # Spark ML's labels are doubles
    chosen = _with_task(choose(replace(facts, label=label), named=asked.features is not None, arrays=True), label, classes=asked.classes)
    chosen = _with_one_image(chosen)
    columns = tuple(_column(choice, source_of[choice.column], kind_of(schema[source_of[choice.column]].dataType))
                    for choice in chosen.columns if choice.use != "left out")
    features = features_of(chosen)
    elements = [name for column in columns if column.length for name in column.elements]
    if elements:
        features["numeric"] = [*features.get("numeric", []), *elements]
    by_user = replace(chosen, columns=tuple(replace(choice, column=source_of[choice.column]) for choice in chosen.columns))
    return Found(by_user, columns, features, label, asked.weight)


def _as_spelled(frame: DataFrame, asked: Asked) -> Asked:
    """What was asked for, by the frame's own spelling of its columns."""
    named_ones = [asked.label, *(asked.features or ()), *([] if asked.weight is None else [asked.weight])]
    own = require_columns(frame, named_ones, what=THE_FRAME)
    return replace(asked, label=own[asked.label], weight=None if asked.weight is None else own[asked.weight],
                   features=None if asked.features is None else tuple(dict.fromkeys(own[name] for name in asked.features)))


def _column(choice: Choice, source: str, kind: Any) -> InputColumn:
    return InputColumn(source=source, name=choice.column, kind=kind, length=choice.length or None)


def _with_one_image(chosen: Choices) -> Choices:
    """The network of images reads one image column and nothing else."""
    images = chosen.of("image")
    if not images:
        return chosen
    why = f"the network of images reads {images[0].column} alone"
    return replace(chosen, columns=tuple(
        each if each is images[0] or each.use == "left out" else replace(each, use="left out", why=why) for each in chosen.columns))


def _with_task(chosen: Choices, label: ColumnFacts, *, classes: bool | None) -> Choices:
    """The choices with the task that the estimator is for."""
    if classes is None or classes == (chosen.task != "regression"):
        return chosen
    if classes:
        raise SourceError(f"the label {label.name} has about {label.distinct:,} values from {label.low} to {label.high}, and at most "
                          f"{MOST_CLASSES} whole numbers or texts are taken for classes; use TorchRegressor, or group its values.")
    if isinstance(label.type, StringType) or not isinstance(label.type, NumericType):
        raise SourceError(f"the label {label.name} is {label.type.simpleString()}, and TorchRegressor predicts numbers; cast it to double, "
                          "or use TorchClassifier.")
    task: Task = "regression"
    left_out = f"; {label.nulls:,} rows without one are left out" if label.nulls else ""
    return replace(chosen, task=task, label_why=f"numbers from {label.low} to {label.high}{left_out}")


def told(choices: Choices) -> str:
    """What became of every column and why, as a table."""
    rows: Sequence[tuple[str, str, str]] = [
        ("column", "used as", "why"), (choices.label, f"label, {choices.task}", choices.label_why),
        *((choice.column, choice.use, choice.why) for choice in choices.columns)]
    widths = [max(len(row[place]) for row in rows) for place in range(2)]
    return "\n".join(f"{column:{widths[0]}}  {use:{widths[1]}}  {why}" for column, use, why in rows)
