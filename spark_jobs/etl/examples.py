"""From source tables to example rows: run the query, then see that its result is what the config says it is.

An example is a row with an id, a 0 / 1 label, the moment that decides its split, and the raw features. All complaints
about them are raised here, before anything is fitted or written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import AtomicType, BooleanType, DataType, DateType, IntegralType, NumericType, TimestampNTZType, TimestampType

from sparkring.conf.schema import PrepareConfig, SplitConfig
from sparkring.errors import ConfigError, SourceError, nearest
from sparkring.spark_jobs.etl.columns import named
from sparkring.spark_jobs.spark_errors import SPARK_ERRORS, reason

SPLITS = ("train", "validation", "test")


@contextmanager
def tables(spark: SparkSession, frames: Mapping[str, DataFrame]) -> Iterator[None]:
    """Let SQL see ``frames`` under their names while the block runs; views of the caller's with these names come back after it."""
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


def run_query(spark: SparkSession, config: PrepareConfig) -> DataFrame:
    """The query's result, cut down to the columns that the config names and checked for their types.

    Args:
        spark: A session in which the sources are visible as tables.
        config: The query and the names and roles of its columns.
    Returns:
        Row id, label, split column and features; nothing was computed yet.
    Raises:
        ConfigError: the query is wrong, or names a role for a column that it does not yield.
        SourceError: a column has a type that its role cannot have.
    """
    _check_names(config)
    try:
        result = spark.sql(config.query)
        types = {field.name: field.dataType for field in result.schema}
    except SPARK_ERRORS as error:
        raise ConfigError(f"prepare.query cannot run: {reason(error)}") from None
    for role, name, kinds, expected in _roles(config):
        if name not in types:
            raise ConfigError(f"{role} names column {name}, which the query does not yield{nearest(name, types)}; "
                              f"it yields {', '.join(types)}.")
        if not isinstance(types[name], kinds):
            raise SourceError(f"column {name} of the query is {types[name].simpleString()}, but {role} must be {expected}; "
                              f"cast it in the query, e.g. CAST({name} AS {expected.partition(' ')[0].upper()}).")
    return result.select([named(name) for _, name, _, _ in _roles(config)])


def survey(result: DataFrame, config: PrepareConfig) -> dict[str, int]:
    """Compute the query's rows and look at the id, label and moment of each.

    Args:
        result: What ``run_query`` returned.
        config: The names of the columns and the borders of the splits.
    Returns:
        Examples of each split, rows without a label left out.
    Raises:
        SourceError: the query fails on a row, null ids or moments, a label other than 0 and 1, or a split without rows.
    """
    label, moment = named(config.label), named(config.split.column)
    labelled = label.isNotNull()
    strange = labelled & ~label.cast("double").isin(0.0, 1.0)
    split = split_name(config.split)
    figures = result.agg(
        sf.count_if(labelled).alias("labelled"), sf.count_if(~labelled).alias("unlabelled"),
        sf.count_if(labelled & named(config.row_id).isNull()).alias("no_id"), sf.count_if(labelled & moment.isNull()).alias("no_moment"),
        sf.count_if(strange).alias("strange"), sf.min(sf.when(strange, label).cast("string")).alias("strange_example"),
        sf.unix_micros(sf.min(sf.when(labelled, moment.cast("timestamp")))).alias("first"),
        sf.unix_micros(sf.max(sf.when(labelled, moment.cast("timestamp")))).alias("last"),
        *(sf.count_if(labelled & (split == name)).alias(name) for name in SPLITS))
    try:
        found = figures.collect()[0]
    except PySparkException as error:  # such as a cast or a division in the query that a row does not allow
        raise SourceError(f"prepare.query fails on its rows: {reason(error)}; correct the query or the source.") from None
    _judge(found, config)
    return {name: found[name] for name in SPLITS}


def split_name(config: SplitConfig) -> Column:
    """The split that a row belongs to by its moment; null where that is null."""
    moment = named(config.column).cast("timestamp")
    return (sf.when(moment < _instant(config.validation_from), "train").when(moment < _instant(config.test_from), "validation")
            .when(moment.isNotNull(), "test"))


def utc(moment: datetime) -> datetime:
    """A config's moment with its time zone; one without is UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _instant(moment: datetime) -> Column:
    return sf.timestamp_micros(sf.lit(round(utc(moment).timestamp() * 1_000_000)))


def _roles(config: PrepareConfig) -> list[tuple[str, str, tuple[type[DataType], ...], str]]:
    """Config key, column, allowed types, and how to call them."""
    numbers: tuple[type[DataType], ...] = (NumericType, BooleanType)
    return [("prepare.row_id", config.row_id, (IntegralType,), "bigint"), ("prepare.label", config.label, numbers, "int (0 or 1)"),
            ("prepare.split.column", config.split.column, (TimestampType, TimestampNTZType, DateType), "timestamp"),
            *(("prepare.features.numeric", name, numbers, "double") for name in config.features.numeric),
            *(("prepare.features.categorical", name, (AtomicType,), "string") for name in config.features.categorical)]


def _check_names(config: PrepareConfig) -> None:
    """Names become attributes of Petastorm's rows; and the answer may not be among the questions."""
    for role, name, _, _ in _roles(config):
        if not name.isidentifier() or name.startswith("_"):
            raise ConfigError(f"{role}: {name!r} cannot name a dataset's column; "
                              "give it a name of letters, digits and _ in the query (AS), not beginning with a digit or _.")
    for name in (*config.features.numeric, *config.features.categorical):
        if name in (config.label, config.row_id, config.split.column):
            raise ConfigError(f"prepare.features holds {name}, which is the label, the row id or the split column; a model would "
                              "learn nothing else. Leave it out, or give a copy that may be known another name in the query.")


def _judge(found: Row, config: PrepareConfig) -> None:
    rows = found["labelled"]
    if not rows:
        raise SourceError(f"the query yields no row whose {config.label} is not null (and {found['unlabelled']} where it is); "
                          "see that its joins and filters keep rows.")
    if found["strange"]:
        raise SourceError(f"label {config.label} is neither 0 nor 1 in {found['strange']} of {rows} rows, e.g. {found['strange_example']}; "
                          "make it 0 or 1 in the query, e.g. CAST(x > 15 AS INT), or null for rows to leave out.")
    for name, missing in ((config.row_id, found["no_id"]), (config.split.column, found["no_moment"])):
        if missing:
            raise SourceError(f"column {name} is null in {missing} of {rows} rows; each needs one: filter or fill it in the query.")
    for name in SPLITS:
        if not found[name]:
            first, last = (datetime.fromtimestamp(found[end] / 1e6, tz=UTC).isoformat() for end in ("first", "last"))
            borders = (utc(border).isoformat() for border in (config.split.validation_from, config.split.test_from))
            raise SourceError(f"the {name} split is empty: {config.split.column} reaches from {first} to {last}, and validation_from and "
                              f"test_from are {' and '.join(borders)}; choose both inside that range (prepare.split).")


def _is_temporary(spark: SparkSession, name: str) -> bool:
    return spark.catalog.tableExists(name) and spark.catalog.getTable(name).isTemporary
