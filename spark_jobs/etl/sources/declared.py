"""The columns that the config declares of a source: whether the source has them, and whether all their values are of their types.

The first is known from the schema, before a row is read; the second takes one pass. A source without declared columns has those of
its own schema, whose values need no check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.types import AtomicType, DataType, DateType, DoubleType, FloatType, FractionalType, IntegralType, NumericType, StringType

from sparkring.conf.schema import SourceConfig, StoredTable
from sparkring.errors import ConfigError, SourceError, SparkringError, nearest, together
from sparkring.spark_jobs.etl.columns.expressions import TEMPORAL_TYPES, finite, named
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS
from sparkring.spark_jobs.spark.versions.casts import try_cast, type_of

UNREADABLE = "\N{REPLACEMENT CHARACTER}"
"""Spark's replacement for bytes that are not characters of the file's encoding."""
_SEPARATORS = ";\t|,"
_DECIMAL_COMMA = re.compile(r"[-+]?(0,\d+|\d{1,3}(\.\d{3})+,\d+|\d+,(?!\d{3}$)\d+)")
"""1,234 is none: it is a thousand where the comma parts thousands. 0,125 and 1.234,567 cannot be."""


def declared_columns(raw: DataFrame, name: str, config: SourceConfig | StoredTable) -> tuple[dict[str, Column], list[SparkringError]]:
    """The declared columns with their types, null where a value does not fit; and what the schema rules out.

    Args:
        raw: The source with all its columns; those of a CSV are strings.
        name: The source's name.
        config: Its columns.
    """
    problems = missing_columns(raw.columns, name, config)
    typed: dict[str, Column] = {}
    for column in config.columns:
        if column in raw.columns:
            try:
                typed[column] = _typed(raw, name, config, column)
            except (ConfigError, SourceError) as error:
                problems.append(error)
    return typed, problems


def missing_columns(found: Sequence[str], name: str, config: SourceConfig | StoredTable) -> list[SparkringError]:
    """An error about the declared columns that a source lacks, if it lacks any.

    Args:
        found: All columns of the source.
        name: Its name.
        config: The declared ones.
    """
    missing = [column for column in config.columns if column not in found]
    if not missing:
        return []
    if is_csv(config) and len(found) == 1:
        other = next((sign for sign in _SEPARATORS if sign in found[0]), None)
        if other is not None:
            sign = other.replace("\t", "\\t")
            return [SourceError(f"source {name} has one column, {found[0]!r}; if {sign} separates its values, set "
                                f"separator: \"{sign}\" in prepare.sources.{name}.")]
    wanted = f"column {missing[0]}{nearest(missing[0], found)}" if len(missing) == 1 else f"columns {', '.join(missing)}"
    return [SourceError(f"source {name} has no {wanted}; it has {', '.join(found) or 'none'}. "
                        f"Correct prepare.sources.{name}.columns.")]


def declared_type(name: str, config: SourceConfig | StoredTable, column: str) -> DataType:
    """The type that the config declares.

    Raises:
        ConfigError: Spark knows no such type.
    """
    wanted = config.columns[column]
    try:
        return type_of(wanted)
    except SPARK_ERRORS:
        raise ConfigError(f"prepare.sources.{name}.columns.{column}: {wanted!r} is not a Spark SQL type; give int, bigint, double, "
                          "string, date or timestamp.") from None


def count_checked(raw: DataFrame, typed: Mapping[str, Column], name: str, config: SourceConfig | StoredTable) -> int:
    """Count the rows, and check the values of the declared columns in the same pass.

    Args:
        raw: The source with all its columns.
        typed: The declared ones, from ``declared_columns``.
        name: The source's name.
        config: Its columns.
    Raises:
        SourceError: values do not fit their types, or columns are all null; the error names all such columns.
    """
    figures: list[Column] = [sf.count(sf.lit(1))]
    for column, value in typed.items():
        wrong = named(column).isNotNull() & value.isNull()
        if is_csv(config) and raw.schema[column].dataType == StringType():
            wrong |= named(column).contains(UNREADABLE)
        figures += [sf.count(value), sf.count_if(wrong), sf.min(sf.when(wrong, named(column).cast("string")))]
    found = raw.agg(*figures).collect()[0]
    problems = [*_wrong_values(found, name, config), *_all_null(found, name, config)] if found[0] else []
    if problems:
        raise together(problems)
    rows: int = found[0]
    return rows


def is_csv(config: SourceConfig | StoredTable) -> bool:
    """Whether a source is a CSV."""
    return isinstance(config, SourceConfig) and config.format == "csv"


def _typed(raw: DataFrame, name: str, config: SourceConfig | StoredTable, column: str) -> Column:
    """The column cast to its declared type, null where a value does not fit."""
    kind = declared_type(name, config, column)
    found = raw.schema[column].dataType
    if found.simpleString() == kind.simpleString():  # ignores whether arrays may hold nulls, which DDL does not say
        return named(column)
    if isinstance(kind, AtomicType) and isinstance(found, AtomicType):
        value = _cast(column, found, kind)
        if isinstance(found, StringType) or _is_valid(raw, value):  # a text can become any of these types
            return value
    raise SourceError(f"source {name}: column {column} is {found.simpleString()} and cannot become {config.columns[column]}; "
                      f"correct prepare.sources.{name}.columns.{column}.")


def _is_valid(raw: DataFrame, value: Column) -> bool:
    """Whether Spark can compute the value by its type; a DataFrame may say so only when its schema is asked for."""
    try:
        _ = raw.select(value).schema
    except SPARK_ERRORS:
        return False
    return True


def _cast(column: str, found: DataType, kind: AtomicType) -> Column:
    value = try_cast(column, kind)
    if isinstance(found, FractionalType) and isinstance(kind, IntegralType):
        return sf.when(value == named(column), value)  # a cast would cut 1.7 down to 1
    if isinstance(kind, (FloatType, DoubleType)):  # a cast would make an infinity of 1e999
        meant = named(column).rlike("(?i)inf") if isinstance(found, StringType) else finite(named(column)).isNull()
        return sf.when((sf.abs(value) < float("inf")) | sf.isnan(value) | meant, value)
    return value


def _wrong_values(found: Row, name: str, config: SourceConfig | StoredTable) -> Iterator[SourceError]:
    null_value = f" or null_value (now {config.null_value!r})" if isinstance(config, SourceConfig) and is_csv(config) else ""
    for place, (column, kind) in enumerate(config.columns.items()):
        wrong, example = found[2 + 3 * place:4 + 3 * place]
        if wrong and isinstance(config, SourceConfig) and UNREADABLE in example:
            yield SourceError(f"source {name}: values of column {column} hold bytes that are not {config.encoding}, "
                              f"e.g. {example!r}; correct encoding in prepare.sources.{name}.")
        elif wrong:
            yield SourceError(f"source {name}: {wrong} of {found[0]} values of column {column} are not {kind}, e.g. {example!r}; "
                              f"correct its type{null_value} in prepare.sources.{name}.{_in_another_form(column, type_of(kind), example)}")


def _in_another_form(column: str, kind: DataType, example: str) -> str:
    """What else to do about a text that may be a value of its type, written as Spark does not read it."""
    quoted = f"`{column}`"
    if isinstance(kind, NumericType) and _DECIMAL_COMMA.fullmatch(example):
        plain = f"replace({quoted}, '.')" if "." in example else quoted
        return f" A number with a decimal comma is a string there, and double(replace({plain}, ',', '.')) in the query."
    if isinstance(kind, NumericType):
        return " A column of texts and numbers is a string, for prepare.features.categorical."
    if isinstance(kind, TEMPORAL_TYPES):
        made = f"to_date({quoted}, 'dd.MM.yyyy')" if isinstance(kind, DateType) else f"to_timestamp({quoted}, 'dd.MM.yyyy HH:mm')"
        return f" One that is not written like 2026-01-31 is a string there, and in the query e.g. {made}."
    return ""


def _all_null(found: Row, name: str, config: SourceConfig | StoredTable) -> Iterable[SourceError]:
    empty = [column for place, column in enumerate(config.columns) if not found[1 + 3 * place] and not found[2 + 3 * place]]
    if not empty:
        return ()
    are, them = ("column {} is", "it") if len(empty) == 1 else ("columns {} are", "them")
    return [SourceError(f"source {name}: {are.format(', '.join(empty))} null in all {found[0]} rows; leave {them} out of "
                        f"prepare.sources.{name}.columns and the query, or check that the file is right.")]
