"""From source tables to example rows: run the query, then check its result against the config.

An example is a row with an id, a label, the key that decides its split, and the raw features. Every error about them
is raised here, before anything is fitted or written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import FractionalType, StringType

from sparkring.conf.schema import PrepareConfig
from sparkring.errors import ConfigError, SourceError, SparkringError, nearest, together
from sparkring.spark_jobs.etl.columns.advice import advise
from sparkring.spark_jobs.etl.columns.derive import check_moments
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.columns.identity import content_columns, with_row_id
from sparkring.spark_jobs.etl.columns.labels import make_binary
from sparkring.spark_jobs.etl.columns.roles import Role, roles_of_query
from sparkring.spark_jobs.etl.columns.splits import SPLITS, key_figures, split_key, split_name, split_names, trains, why_empty
from sparkring.spark_jobs.etl.columns.weights import check_weights, weight_figures
from sparkring.spark_jobs.etl.columns.wildcards import expanded
from sparkring.spark_jobs.etl.names import name_problems
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason

_NUMBERS = ("binary", "regression")
"""The tasks whose label is a number, not the name of a class."""
_ROWS_FOR_ADVICE = 10_000
"""Rows in which values of a label are looked up for an error."""


@contextmanager
def tables(spark: SparkSession, frames: Mapping[str, DataFrame]) -> Iterator[None]:
    """Register ``frames`` as views for the block; the caller's own views of these names are restored after it."""
    shadowed = {name: spark.table(name) for name in frames if _is_temporary(spark, name)}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    try:
        yield
    finally:
        for name in frames:
            if name in shadowed:
                shadowed[name].createOrReplaceTempView(name)
            else:
                spark.catalog.dropTempView(name)


@dataclass(frozen=True)
class Query:
    """The query of a config, checked against the columns of its sources; no row is computed yet."""

    rows: DataFrame
    """Row id, label, split column and features (of texts: name, text and split column)."""
    config: PrepareConfig
    """The config, with the columns that its wildcards stand for."""
    row_id_of: tuple[str, ...] = ()
    """Columns of the query that the row ids are made of; empty if the query yields them."""


def run_query(spark: SparkSession, config: PrepareConfig) -> Query:
    """Analyse the query and check the columns that the config names.

    Args:
        spark: A session in which the sources are visible as tables.
        config: The query and the names and roles of its columns.
    Raises:
        ConfigError: the query cannot run, or lacks a column that the config names.
        SourceError: a column has a type that its role cannot have. Errors about several columns are one error.
    """
    try:
        result = spark.sql(config.query)
        types = {field.name: field.dataType for field in result.schema}
    except SPARK_ERRORS as error:
        raise ConfigError(f"prepare.query cannot run: {reason(error)}; correct the query, or the columns of its sources.") from None
    alike = Counter(name.lower() for name in result.columns)  # SQL does not tell Km and km apart
    kept = {config.id_column, config.label, split_key(config).column, config.weight or ""}
    config = config.model_copy(update={"features": expanded(config.features, list(types), kept=kept)})
    made = config.row_id is None and config.features.tokens is None and config.id_column not in alike
    content = content_columns(config, types) if made else ()
    roles = [role for role in roles_of_query(config) if not made or role.column != config.id_column]
    problems = [*name_problems(config, roles), *_column_problems(result, roles, alike), *_problems_of_content(content, alike)]
    if problems:
        raise together(problems)
    check_moments(config.features.moments, types)
    rows = with_row_id(result, content, name=config.id_column) if made else result
    columns = dict.fromkeys(role.column for role in roles) | ({config.id_column: None} if made else {})
    return Query(rows.select([named(name) for name in columns]), config, content)


def _column_problems(result: DataFrame, roles: Iterable[Role], alike: Mapping[str, int]) -> Iterator[SparkringError]:
    """An error for each column that is missing, has a namesake, or is of a type that its role does not take."""
    types = {field.name: field.dataType for field in result.schema}
    for each in roles:
        role, name, kinds, expected = each
        if name not in types:
            yield ConfigError(f"{role} names column {name}, which the query does not yield{nearest(name, types)}; "
                              f"it yields {', '.join(types)}.")
        elif alike[name.lower()] > 1:
            yield ConfigError(f"{role} names column {name}, and the query yields {alike[name.lower()]} columns of that name; leave all but "
                              "one out of the query, or give them other names in it (AS).")
        elif not isinstance(types[name], kinds):
            texts = _some_values(result, name) if role == "prepare.label" and isinstance(types[name], StringType) else ()
            yield SourceError(f"column {name} of the query is {types[name].simpleString()}, but {role} must be {expected}; "
                              f"{advise(each, types[name], values=texts)}.")


def _problems_of_content(content: Iterable[str], alike: Mapping[str, int]) -> Iterator[SparkringError]:
    for name in content:
        if alike[name.lower()] > 1:
            yield ConfigError(f"the query yields {alike[name.lower()]} columns {name}, and row ids are made of all its columns; leave all "
                              "but one out of the query, give them other names in it (AS), or name a key in prepare.row_id.")


def _some_values(result: DataFrame, column: str) -> Sequence[str]:
    """Different values among the first rows, for advice; empty if they cannot be read."""
    values = result.select(named(column).alias("value")).where("value IS NOT NULL").limit(_ROWS_FOR_ADVICE).distinct()
    try:
        return sorted(row["value"] for row in values.collect())
    except SPARK_ERRORS:
        return ()


def with_label(result: DataFrame, config: PrepareConfig) -> DataFrame:
    """The rows of the query that have a label; a number to predict becomes a double. Rows without one are not checked any further."""
    rows = result.where(named(config.label).isNotNull())
    return rows.withColumn(config.label, named(config.label).cast("double")) if config.task == "regression" else rows


def check_examples(examples: DataFrame, config: PrepareConfig, *, unlabelled: Callable[[], int], whole: bool = True) -> dict[str, int]:
    """Compute the examples and check the id, label and split key of each.

    Args:
        examples: The rows of the query that have a label.
        config: The names of the columns, and how rows are split.
        unlabelled: Counts the rows without a label; called only if there is no example.
        whole: Whether each split must have rows; appended rows need not fill every split.
    Returns:
        Examples of each split.
    Raises:
        SourceError: null ids or keys, an unsuitable weight, a label other than 0 and 1 or, for a regression, than finite numbers, or
            a split without rows or with a single label.
    """
    label, key = named(config.label), named(split_key(config).column)
    number = label.cast("double") if config.task in _NUMBERS else sf.lit(None).cast("double")
    strange = ~number.isin(0.0, 1.0) if config.task == "binary" else ~(sf.abs(number) < float("inf"))
    split, names = split_name(config), split_names(config)
    figures = examples.agg(
        sf.count(sf.lit(1)).alias("rows"), sf.count_if(named(config.id_column).isNull()).alias("no_id"),
        sf.count_if(key.isNull()).alias("no_key"), sf.count_if(strange).alias("strange"),
        sf.min(sf.when(strange, label).cast("string")).alias("strange_example"),
        sf.count_if(key.isNotNull() & split.isNull()).alias("nowhere"),
        sf.min(sf.when(split.isNull(), key).cast("string")).alias("nowhere_example"), *key_figures(config, label.isNotNull()),
        *(figure(sf.when(split == name, number)).alias(f"{word}_{name}")
          for name in names for word, figure in (("least", sf.min), ("most", sf.max))),
        *(sf.count_if(split == name).alias(name) for name in names),
        *(weight_figures(config.weight, train=trains(config)) if config.weight is not None else ()))
    found = figures.collect()[0]
    if whole and not found["rows"]:
        raise SourceError(f"the query yields no row whose {config.label} is not null (and {unlabelled()} where it is); "
                          "check that its joins and filters keep rows.")
    if found["strange"]:
        raise _strange_label(found, config, fraction=isinstance(examples.schema[config.label].dataType, FractionalType))
    _check_figures(found, config, whole=whole)
    if config.weight is not None:
        check_weights(config.weight, found, whole=whole)
    return {name: found[name] for name in names}


def _strange_label(found: Row, config: PrepareConfig, *, fraction: bool) -> SourceError:
    """An error about labels that the task does not take; ``fraction``: whether their type has fractions."""
    if config.task == "binary":
        what, remedy = "neither 0 nor 1", make_binary(config.label, fraction=fraction)
    else:
        what, remedy = "NaN or infinite", "make it null in the query for rows to leave out."
    return SourceError(f"label {config.label} is {what} in {found['strange']} of {found['rows']} rows, e.g. {found['strange_example']}; "
                       f"{remedy}")


def _check_figures(found: Row, config: PrepareConfig, *, whole: bool) -> None:
    rows = found["rows"]
    for name, missing in ((config.id_column, found["no_id"]), (split_key(config).column, found["no_key"])):
        if missing:
            raise SourceError(f"column {name} is null in {missing} of {rows} rows; each needs one: filter or fill it in the query.")
    if found["nowhere"]:
        raise SourceError(f"{split_key(config).column} names no split in {found['nowhere']} of {rows} rows, e.g. "
                          f"{found['nowhere_example']!r}; make it {', '.join(SPLITS)} in the query, or filter those rows out.")
    names = split_names(config)
    for name in names:
        if whole and not found[name]:
            raise SourceError(why_empty(config, name, found))
    for name in names if whole and config.task in _NUMBERS else ():
        least = found[f"least_{name}"]
        if least == found[f"most_{name}"]:  # train and evaluate refuse such splits
            raise SourceError(f"label {config.label} is {least:.15g} in all {found[name]} {name} rows, so there is nothing to "
                              "predict; change the query or prepare.split.")


def _is_temporary(spark: SparkSession, name: str) -> bool:
    return spark.catalog.tableExists(name) and spark.catalog.getTable(name).isTemporary
