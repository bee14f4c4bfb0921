"""Advice about a column of the query whose type does not fit its role. Pure.

Each expression has a type that the role takes, and Spark can compute it; its condition says for which values, or what to change in it.
Where a double would be hashed as a text it is made a decimal, since its text depends on Java's version (``expressions.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    FractionalType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
)

from sparkring.spark_jobs.etl.columns.expressions import TEMPORAL_TYPES
from sparkring.spark_jobs.etl.columns.roles import Role
from sparkring.spark_jobs.spark.versions.variants import VARIANT

_MEAN_ONE = ("1", "yes", "y", "true", "t", "on", "positive")
"""Texts that mean 1, where a label has two."""
_LONGEST_SHOWN = 30


class Conversion(NamedTuple):
    """An expression to use in the query instead of a column."""

    expression: str
    condition: str = ""
    """The values for which it is right; empty: all."""


def advise(role: Role, found: DataType, *, values: Sequence[str] = ()) -> str:
    """What to do about a column of a type that its role does not take: config keys to change, expressions for the query, or both.

    Args:
        role: The column and its role.
        found: Its type.
        values: Different values of it, if they are known; of two texts of a label, one becomes 1.
    """
    ways = [*settings(role, found), *(
        f"use {expression} AS {role.column} in the query{f' ({condition})' if condition else ''}"
        for expression, condition in _of_two_texts(role, values) or conversions(role, found))]
    regression = ". For a label of measured numbers set prepare.task: regression" if (
        role.key == "prepare.label" and _is_fraction(found)) else ""
    return f"{', or '.join(ways) or 'no cast makes it that, so name another column'}{regression}"


def settings(role: Role, found: DataType) -> list[str]:
    """Changes of the config after which the column fits as it is, or is not needed."""
    if role.key == "prepare.row_id":
        renamed = "give it another name in the query and " if role.column == "row_id" else ""
        return [f"{renamed}leave prepare.row_id out, since prepare then makes ids of each row's content"]
    if role.key == "prepare.label" and isinstance(found, StringType | BooleanType):
        return [f"set prepare.task: {'multiclass' if isinstance(found, StringType) else 'binary'}"]
    if role.key == "prepare.features.numeric" and isinstance(found, StringType):
        return ["name it in prepare.features.categorical instead"]
    if role.key == "prepare.features.numeric" and isinstance(found, TEMPORAL_TYPES):
        return ["name it in prepare.features.moments instead"]
    if _names_split(role) and isinstance(found, TEMPORAL_TYPES):
        return ["set prepare.split.by: time, with validation_from and test_from"]
    return []


def conversions(role: Role, found: DataType) -> list[Conversion]:
    """Expressions over the column that have a type which the role takes."""
    return [] if isinstance(found, NullType) else _rule(role)(role, found)


def _rule(role: Role) -> Callable[[Role, DataType], list[Conversion]]:
    if _names_split(role):
        return _split_names
    by_key = {"prepare.row_id": _row_ids, "prepare.label": _labels}
    by_kinds = {TEMPORAL_TYPES: _moments, (ArrayType,): _arrays, (BinaryType,): _images}
    return by_key.get(role.key) or by_kinds.get(role.kinds) or (_texts if StringType in role.kinds else _numbers)


def _row_ids(role: Role, found: DataType) -> list[Conversion]:
    hashable = f"to_json({role.column})" if isinstance(found, (MapType, *VARIANT)) else role.column
    whole = [Conversion(f"CAST({role.column} AS BIGINT)", "if its values are whole numbers")] if isinstance(
        found, FractionalType) else []
    return [*whole, Conversion(f"xxhash64({hashable})", "a hash, if its values are different in all rows")]


def _labels(role: Role, found: DataType) -> list[Conversion]:
    if BooleanType not in role.kinds:
        return [Conversion(f"CAST({role.column} AS BIGINT)", "if its numbers are classes")] if _is_fraction(found) else _texts(role, found)
    if isinstance(found, StringType):
        return [Conversion(f"CAST({role.column} = 'yes' AS INT)", "with the text that means 1")]
    return [Conversion(f"CAST({role.column} >= DATE'2020-01-31' AS INT)", "with the day from which it is 1")] if isinstance(
        found, TEMPORAL_TYPES) else []


def _of_two_texts(role: Role, values: Sequence[str]) -> list[Conversion]:
    if role.key != "prepare.label" or BooleanType not in role.kinds or len(values) != 2 or max(map(len, values)) > _LONGEST_SHOWN:
        return []
    one = next((value for value in values if value.lower() in _MEAN_ONE), max(values))
    other = next(value for value in values if value != one)
    return [Conversion(f"CAST({role.column} = {_literal(one)} AS INT)", f"which makes {_literal(other)} 0")]


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _split_names(role: Role, found: DataType) -> list[Conversion]:
    names = f"CASE {role.column} WHEN 0 THEN 'train' WHEN 1 THEN 'validation' ELSE 'test' END"
    return [Conversion(names, "with its numbers")] if isinstance(found, NumericType) else []


def _moments(role: Role, found: DataType) -> list[Conversion]:
    if isinstance(found, StringType):
        return [Conversion(f"to_timestamp({role.column}, 'yyyy-MM-dd HH:mm:ss')", "with the format of its texts")]
    return [Conversion(f"timestamp_seconds({role.column})", "if it counts seconds since 1970")] if isinstance(found, NumericType) else []


def _arrays(role: Role, found: DataType) -> list[Conversion]:
    if isinstance(found, StringType):
        return [Conversion(f"from_json({role.column}, 'array<double>')", "if its texts are like [1, 2]")]
    return [Conversion(f"array({role.column})", "an array of one number")] if isinstance(found, NumericType | BooleanType) else []


def _images(role: Role, found: DataType) -> list[Conversion]:
    return [Conversion(f"unbase64({role.column})", "if its texts are base64")] if isinstance(found, StringType) else []


def _numbers(role: Role, found: DataType) -> list[Conversion]:
    if isinstance(found, StringType):
        return [Conversion(f"CAST({role.column} AS DOUBLE)", "if its texts are numbers") if role.key == "prepare.features.raw" else
                Conversion(f"TRY_CAST({role.column} AS DOUBLE)", "which makes nulls of texts that are no numbers")]
    return [Conversion(f"unix_seconds(CAST({role.column} AS TIMESTAMP))", "the seconds since 1970")] if isinstance(
        found, TEMPORAL_TYPES) else []


def _texts(role: Role, found: DataType) -> list[Conversion]:
    if isinstance(found, BinaryType):
        return [Conversion(f"hex({role.column})")]
    if isinstance(found, (ArrayType, MapType, StructType, *VARIANT)):
        return [Conversion(f"to_json({role.column})")]
    if DecimalType in role.kinds and _is_fraction(found):
        return [Conversion(f"TRY_CAST({role.column} AS DECIMAL(38, 6))", "rounded to 6 places")]
    return [Conversion(f"CAST({role.column} AS STRING)")]


def _names_split(role: Role) -> bool:
    return role.key == "prepare.split.column" and role.kinds == (StringType,)


def _is_fraction(found: DataType) -> bool:
    return isinstance(found, FractionalType)
