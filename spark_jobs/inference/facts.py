"""Facts about the columns of a table, measured by Spark in two passes over its rows. They are all that the choice (choose.py) knows.

Distinct values are estimated; every other figure is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, DataType, NumericType, StringType, StructField

from sparkring.spark_jobs.etl.columns.expressions import TEMPORAL_TYPES, named

LOG_REGISTERS = 12
"""Of a sketch that estimates distinct values: 1.6 % is the standard error of 4,096 registers. A sketch is one value while Spark aggregates;
``approx_count_distinct`` of the same error is 410, and the code that Spark makes for a table's hundred of them takes longest of all."""

_NUMBERS = (NumericType, BooleanType)


@dataclass(frozen=True)
class ColumnFacts:
    """One column."""

    name: str
    type: DataType
    rows: int
    """Rows of the table."""
    nulls: int
    distinct: int
    """Estimated number of values, nulls not counted."""
    low: object = None
    """Smallest value of a number, text, date or timestamp."""
    high: object = None
    mean_length: float = 0.0
    """Characters of a text, elements of an array, or bytes of a binary value."""
    lengths: tuple[int, int] = (0, 0)
    """The shortest and the longest of these."""
    whole: bool = False
    """Whether every number is a whole one."""
    equal_to_label: int = 0
    """Rows where the column equals the label, as numbers if both are, else as texts; both not null."""
    labels_by_value: int = 0
    """Estimated number of pairs (value, label): as many as values, if the value decides the label."""
    labels_seen: int = 0
    """Estimated number of different labels of the rows with a value; ``labels_at_null`` of those without."""
    labels_at_null: int = 0
    nulls_without_label: int = 0
    """Rows where both the column and the label are null."""
    correlation: float = 0.0
    """Pearson's, of a number with a label that is a number; 0 if there is none."""
    apart: bool = False
    """Of a number: where the label is 1, all values are above those where it is 0, or all below."""

    @property
    def present(self) -> int:
        """Rows with a value."""
        return self.rows - self.nulls


@dataclass(frozen=True)
class TableFacts:
    """The columns of a table, and its label."""

    columns: tuple[ColumnFacts, ...]
    label: ColumnFacts

    @property
    def labelled(self) -> int:
        """Rows with a label."""
        return self.label.present


def measure(table: DataFrame, *, label: str) -> TableFacts:
    """Measure every column of ``table`` beside its column ``label``.

    Args:
        table: The rows; read once, and once more for the numbers among them.
        label: A column of it.
    """
    fields = table.schema.fields
    figures = [figure.alias(f"{place}_{name}") for place, field in enumerate(fields)
               for name, figure in _figures(named(field.name), field.dataType, named(label), table.schema[label].dataType)]
    row = table.agg(sf.count(sf.lit(1)).alias("rows"), *figures).collect()[0]
    numbers = _measured_numbers(table, label)
    facts = [_facts(row, place, field, numbers.get(field.name, {})) for place, field in enumerate(fields)]
    return TableFacts(tuple(each for each in facts if each.name != label), next(each for each in facts if each.name == label))


def _figures(column: Column, kind: DataType, label: Column, label_kind: DataType) -> Iterator[tuple[str, Column]]:
    yield "nulls", sf.count_if(column.isNull())
    yield "nulls_without_label", sf.count_if(column.isNull() & label.isNull())
    if isinstance(kind, StringType | BinaryType | ArrayType):
        size = sf.size(column) if isinstance(kind, ArrayType) else sf.length(column)
        size = sf.when(column.isNotNull(), size)
        yield "mean_length", sf.avg(size)
        yield "shortest", sf.min(size)
        yield "longest", sf.max(size)
    if isinstance(kind, (StringType, NumericType, BooleanType, *TEMPORAL_TYPES)):
        yield "distinct", _distinct(column)
        yield "labels_by_value", _distinct(column, label)
        yield "labels_seen", _distinct(label, where=column.isNotNull())
        yield "labels_at_null", _distinct(label, where=column.isNull())
        yield "low", sf.min(column)
        yield "high", sf.max(column)
        if not (isinstance(kind, _NUMBERS) and isinstance(label_kind, _NUMBERS)):
            yield "equal_to_label", sf.count_if(column.cast("string") == label.cast("string"))


def _measured_numbers(table: DataFrame, label: str) -> dict[str, dict[str, Any]]:
    """The figures of numbers and booleans that take several aggregates each, by column.

    All columns are folded into (place, number) pairs and grouped by place, as ``etl/fit.py`` does: with an aggregate for each column and
    figure, the code that Spark makes is too long for the JVM to compile (measured with 9 of them: 1.8 s against 5.6 s in a fresh session).
    """
    numbers = [field.name for field in table.schema.fields if isinstance(field.dataType, _NUMBERS)]
    if not numbers:
        return {}
    target = named(label).cast("double") if label in numbers else sf.lit(None).cast("double")
    pairs = table.select(target.alias("label"), sf.posexplode(sf.array(*(named(name).cast("double") for name in numbers))).alias(
        "place", "number"))
    number, target = sf.col("number"), sf.col("label")
    figures = {"fractions": sf.count_if(number != sf.round(number)), "equal_to_label": sf.count_if(number == target),
               "correlation": _correlation(number, target)}
    for value in (0, 1):
        there = sf.when(target == value, number)
        figures |= {f"low_at_{value}": sf.min(there), f"high_at_{value}": sf.max(there)}
    rows = pairs.groupBy("place").agg(*(figure.alias(name) for name, figure in figures.items())).collect()
    return {numbers[row["place"]]: row.asDict() for row in rows}


def _distinct(*columns: Column, where: Column | None = None) -> Column:
    """Estimated number of different combinations, of rows ``where`` none is null."""
    conditions = [column.isNotNull() for column in columns]
    present = reduce(and_, conditions if where is None else [where, *conditions])
    return sf.hll_sketch_estimate(sf.hll_sketch_agg(sf.when(present, sf.xxhash64(*columns)), LOG_REGISTERS))


def _correlation(number: Column, target: Column) -> Column:
    """Pearson's; null where one of them has one value, for which ``corr`` raises under ANSI."""
    spread = sf.stddev_pop(sf.when(target.isNotNull(), number)) * sf.stddev_pop(sf.when(number.isNotNull(), target))
    return sf.try_divide(sf.covar_pop(number, target), spread)


def _facts(row: Row, place: int, field: StructField, numbers: dict[str, Any]) -> ColumnFacts:
    found = {key.partition("_")[2]: value for key, value in row.asDict().items() if key.startswith(f"{place}_")} | numbers
    is_number = isinstance(field.dataType, NumericType)
    return ColumnFacts(
        name=field.name, type=field.dataType, rows=row["rows"], nulls=found["nulls"], nulls_without_label=found["nulls_without_label"],
        distinct=found.get("distinct") or 0, low=found.get("low"), high=found.get("high"), mean_length=found.get("mean_length") or 0.0,
        lengths=(found.get("shortest") or 0, found.get("longest") or 0), whole=is_number and found.get("fractions") == 0,
        equal_to_label=found.get("equal_to_label") or 0, labels_by_value=found.get("labels_by_value") or 0,
        labels_seen=found.get("labels_seen") or 0, labels_at_null=found.get("labels_at_null") or 0,
        correlation=(found.get("correlation") or 0.0) if is_number else 0.0, apart=is_number and _apart(found))


def _apart(found: dict[str, Any]) -> bool:
    borders = [found.get(f"{end}_at_{value}") for end in ("low", "high") for value in (0, 1)]
    low_at_0, low_at_1, high_at_0, high_at_1 = (math.nan if border is None else float(border) for border in borders)
    return low_at_1 > high_at_0 or high_at_1 < low_at_0
