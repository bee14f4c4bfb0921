"""From source tables to example rows: run the query, then check its result against the config.

An example is a row with an id, a label, the key that decides its split, and the raw features. Every error about them
is raised here, before anything is fitted or written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from keyword import iskeyword

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType

from sparkring.conf.schema import PrepareConfig
from sparkring.errors import ConfigError, SourceError, SparkringError, joined, nearest
from sparkring.models.inputs import TOKENS
from sparkring.spark_jobs.etl.columns.advice import advise
from sparkring.spark_jobs.etl.columns.derive import check_moments
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.columns.roles import Role, roles_of_query
from sparkring.spark_jobs.etl.columns.splits import SPLITS, key_figures, split_key, split_name, why_empty
from sparkring.spark_jobs.etl.columns.weights import check_weights, weight_figures
from sparkring.spark_jobs.etl.encoding.arrays import require_pad
from sparkring.spark_jobs.etl.encoding.describe import made_tensors
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason

_NUMBERS = ("binary", "regression")
"""The tasks whose label is a number, not the name of a class."""
_STRANGE = {
    "binary": ("neither 0 nor 1", ("make it 0 or 1 in the query, e.g. CAST(x > 15 AS INT), or null for rows to leave out. For numbers of "
                                   "classes set prepare.task: multiclass, for measured numbers set prepare.task: regression")),
    "regression": ("NaN or infinite", "make it null in the query for rows to leave out")}
"""By task: what a label must not be, and the remedy."""


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


def run_query(spark: SparkSession, config: PrepareConfig) -> DataFrame:
    """Return the columns of the query's result that the config names, with their types checked.

    Args:
        spark: A session in which the sources are visible as tables.
        config: The query and the names and roles of its columns.
    Returns:
        Row id, label, split column and features (of texts: name, text and split column); not computed yet.
    Raises:
        ConfigError: the query cannot run, or lacks a column that the config names.
        SourceError: a column has a type that its role cannot have.
    """
    result, problems = _analysed(spark, config)
    if problems:
        raise joined("prepare", problems)
    return result.select([named(name) for name in dict.fromkeys(role.column for role in roles_of_query(config))])


def query_problems(spark: SparkSession, config: PrepareConfig) -> list[SparkringError]:
    """Every column of the query that cannot have its role. Raises as ``run_query`` if the query itself cannot run."""
    return _analysed(spark, config)[1]


def _analysed(spark: SparkSession, config: PrepareConfig) -> tuple[DataFrame, list[SparkringError]]:
    _check_names(config)
    try:
        result = spark.sql(config.query)
        types = {field.name: field.dataType for field in result.schema}
        alike = Counter(field.name.lower() for field in result.schema)  # SQL does not tell Km and km apart
    except SPARK_ERRORS as error:
        raise ConfigError(f"prepare.query cannot run: {reason(error)}; correct the query, or the columns of its sources.") from None
    problems = [problem for role in roles_of_query(config) if (problem := _problem(role, types, alike))]
    if not problems:
        check_moments(config.features.moments, types)
    return result, problems


def _problem(each: Role, types: Mapping[str, DataType], alike: Mapping[str, int]) -> SparkringError | None:
    """Why a column of the query cannot have its role."""
    role, name, kinds, expected = each
    if name not in types:
        return ConfigError(f"{role} names column {name}, which the query does not yield{nearest(name, types)}; "
                           f"it yields {', '.join(types)}.")
    if alike[name.lower()] > 1:
        return ConfigError(f"{role} names column {name}, and the query yields {alike[name.lower()]} columns of that name; leave all but "
                           "one out of the query, or give them other names in it (AS).")
    if not isinstance(types[name], kinds):
        return SourceError(f"column {name} of the query is {types[name].simpleString()}, but {role} must be {expected}; "
                           f"{advise(each, types[name])}.")
    return None


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
    split = split_name(config)
    figures = examples.agg(
        sf.count(sf.lit(1)).alias("rows"), sf.count_if(named(config.row_id).isNull()).alias("no_id"),
        sf.count_if(key.isNull()).alias("no_key"), sf.count_if(strange).alias("strange"),
        sf.min(sf.when(strange, label).cast("string")).alias("strange_example"),
        sf.count_if(key.isNotNull() & split.isNull()).alias("nowhere"),
        sf.min(sf.when(split.isNull(), key).cast("string")).alias("nowhere_example"), *key_figures(config, label.isNotNull()),
        *(figure(sf.when(split == name, number)).alias(f"{word}_{name}")
          for name in SPLITS for word, figure in (("least", sf.min), ("most", sf.max))),
        *(sf.count_if(split == name).alias(name) for name in SPLITS),
        *(weight_figures(config.weight, train=split == SPLITS[0]) if config.weight is not None else ()))
    found = figures.collect()[0]
    if whole and not found["rows"]:
        raise SourceError(f"the query yields no row whose {config.label} is not null (and {unlabelled()} where it is); "
                          "check that its joins and filters keep rows.")
    _check_figures(found, config, whole=whole)
    if config.weight is not None:
        check_weights(config.weight, found, whole=whole)
    return {name: found[name] for name in SPLITS}


def _check_names(config: PrepareConfig) -> None:
    """Check names: they become attributes of Petastorm's rows, and the label must not be a feature."""
    for role, name, _, _ in roles_of_query(config):
        if not name.isidentifier() or name.startswith("_") or iskeyword(name):
            raise ConfigError(f"{role}: {name!r} cannot name a dataset's column; give it a name of letters, digits and _ in the query "
                              "(AS), not beginning with a digit or _, and not a keyword of Python such as class.")
    features = config.features
    kept = (config.label, config.row_id, split_key(config).column, config.weight)
    for name in (*features.numbers, *features.categorical, *(raw.column for raw in features.raw),
                 *(bucket.column for bucket in features.buckets), *(hashed.column for hashed in features.hashed)):
        if name in kept:
            raise ConfigError(f"prepare.features holds {name}, which is the label, the row id, the split column or the weight, and a model "
                              "would learn little else; leave it out or, if a model may know it, give a copy of it another name in the "
                              "query.")
    for raw in features.raw:
        require_pad(raw)
        if raw.column in made_tensors(config):
            raise ConfigError(f"prepare.features.raw: a batch has another tensor {raw.column}, made of other columns; give this column "
                              "another name in the query (AS).")
    for name in features.derived:
        if name in kept:
            raise ConfigError(f"prepare.features makes a column {name}, which is the name of the label, the row id, the split column or "
                              "the weight; give the latter another name in the query.")
    _require_apart(config)


def _require_apart(config: PrepareConfig) -> None:
    """Check that no two columns differ only in capitals, which Spark ignores."""
    features = config.features
    names = (config.row_id, config.label or TOKENS, *([config.weight] if config.weight is not None else []),
             *features.numbers, *features.categorical, *features.derived, *([features.image.column] if features.image else []),
             *(raw.column for raw in features.raw))
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            raise ConfigError(f"prepare makes two columns {seen[name.lower()]} and {name}, which Spark does not tell apart, since it "
                              "ignores capitals; give one of them another name.")
        seen[name.lower()] = name


def _check_figures(found: Row, config: PrepareConfig, *, whole: bool) -> None:
    rows = found["rows"]
    if found["strange"]:
        kind, remedy = _STRANGE[config.task]
        raise SourceError(f"label {config.label} is {kind} in {found['strange']} of {rows} rows, e.g. {found['strange_example']}; "
                          f"{remedy}.")
    for name, missing in ((config.row_id, found["no_id"]), (split_key(config).column, found["no_key"])):
        if missing:
            raise SourceError(f"column {name} is null in {missing} of {rows} rows; each needs one: filter or fill it in the query.")
    if found["nowhere"]:
        raise SourceError(f"{split_key(config).column} names no split in {found['nowhere']} of {rows} rows, e.g. "
                          f"{found['nowhere_example']!r}; make it {', '.join(SPLITS)} in the query, or filter those rows out.")
    for name in SPLITS:
        if whole and not found[name]:
            raise SourceError(why_empty(config, name, found))
    for name in SPLITS if whole and config.task in _NUMBERS else ():
        least = found[f"least_{name}"]
        if least == found[f"most_{name}"]:  # train and evaluate refuse such splits
            raise SourceError(f"label {config.label} is {least:.15g} in all {found[name]} {name} rows, so there is nothing to "
                              "predict; change the query or prepare.split.")


def _is_temporary(spark: SparkSession, name: str) -> bool:
    return spark.catalog.tableExists(name) and spark.catalog.getTable(name).isTemporary
