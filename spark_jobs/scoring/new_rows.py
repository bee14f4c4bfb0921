"""New rows for a trained model: the config's query, with a source replaced by files or a table that need hold no label.

    sparkring score orders.yaml --input new_orders.csv
    sparkring score flights.yaml --input flights=july.csv --input weather=july_weather.csv      the other sources stay

A declared column that the input lacks is absent: nothing that the model reads may depend on it, and no WHERE or JOIN. Columns of the
query that do, such as the label, are left out. Values are checked while they are read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType

from sparkring.conf.schema import Config, PrepareConfig, SourceConfig, StoredTable, TableSource
from sparkring.errors import ConfigError, SourceError, nearest
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.examples import tables
from sparkring.spark_jobs.etl.sources.declared import UNREADABLE, declared_columns, is_csv
from sparkring.spark_jobs.etl.sources.folders import FORMATS, read_folder
from sparkring.spark_jobs.etl.sources.tables import OpenTable, Source, cache_of, listed, locate, open_raw, unreadable
from sparkring.spark_jobs.scoring.plans import absent, absent_behind, takes_rows_one_by_one
from sparkring.spark_jobs.scoring.portions import Input
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason
from sparkring.spark_jobs.spark.versions.casts import ddl_of

Given = str | Mapping[str, str]
"""A path or a table in place of the only source, or of the sources of these names."""
_UNREADABLE = re.compile("MALFORMED|FAILFAST|FAILED_READ_FILE|CSV header does not conform"
                         "|Encountered error while reading file|Parquet column cannot be converted in file")
"""Spark's words for a file that it cannot read to its end; the last two are those of Spark 3.5."""
_STRANGE = re.compile(r"__sparkring_strange\((.*?)\)\)", re.DOTALL)


@dataclass(frozen=True)
class NewRows:
    """Rows to score, not computed yet."""

    frame: DataFrame
    identity: dict[str, Any] | None = None
    """What the rows are, by the names, sizes and times of all files behind them; None if that is not known."""
    files: tuple[Input, ...] = ()
    """The files behind them, if the rows of each can be computed by themselves."""
    of: Callable[[Sequence[str]], DataFrame] | None = None
    """Makes the rows of some of these files."""
    left_out: tuple[str, ...] = ()
    """Columns of the query that are made of what the input lacks."""


def rows_of(frame: DataFrame) -> NewRows:
    """The rows of a frame of the caller's.

    Raises:
        SourceError: several of its columns have one name, and files cannot keep them.
    """
    if twice := _twice(frame):
        raise SourceError(f"the frame has {twice[1]} columns {twice[0]}, and scores keep all its columns; drop all but one, or give them "
                          "other names with toDF.")
    return NewRows(frame)


@contextmanager
def new_rows(spark: SparkSession, config: Config, given: Given, *, features: Sequence[str]) -> Iterator[NewRows]:
    """Yield the query's rows for the block, with the ``given`` sources in place of those of the config.

    Args:
        spark: A session with ``result_settings``.
        config: The sources and the query.
        given: What replaces sources.
        features: The columns that the model needs.
    Raises:
        ConfigError: ``given`` names no source, or leaves open which is meant; or the query cannot run on these rows.
        SourceError: the input cannot be read, a feature depends on a column that it lacks, or a value does not fit its type.
    """
    prepare = config.prepare
    replaced = _replaced(prepare, given)
    sources = {name: _located(spark, name, source, replaced.get(name)) for name, source in prepare.sources.items()}
    opened = {name: _open(spark, config, source, input_of=name in replaced) for name, source in sources.items()}
    with tables(spark, {name: table.frame for name, table in opened.items()}), _errors_explained(list(opened.values())):
        result = _run(spark, prepare.query)
        kept = _without_absent(result, features)
        rows = result.select([named(name) for name in kept])
        identity, files = _listed(spark, sources)

        def of(names: Sequence[str]) -> DataFrame:
            (name, source), = sources.items()
            _open(spark, config, source, input_of=name in replaced, only=names).frame.createOrReplaceTempView(name)
            return _run(spark, prepare.query).select([named(column) for column in kept])

        alone = len(sources) == 1 and len(files) > 1 and takes_rows_one_by_one(rows)
        yield NewRows(rows, identity, files if alone else (), of if alone else None,
                      tuple(name for name in result.columns if name not in kept))


def _replaced(config: PrepareConfig, given: Given) -> dict[str, str]:
    """The inputs by the names of the sources that they replace."""
    names = list(config.sources)
    if isinstance(given, str):
        if len(names) > 1:
            raise ConfigError(f"the query reads {len(names)} sources, {', '.join(names)}; say which one the input replaces, e.g. "
                              f"--input {names[0]}={given} (in Python input={{{names[0]!r}: {given!r}}}).")
        return {names[0]: given}
    for name in given:
        if name not in config.sources:
            raise ConfigError(f"the query reads no source {name}{nearest(name, names)}; it reads {', '.join(names)}.")
    return dict(given)


def _located(spark: SparkSession, name: str, config: SourceConfig | StoredTable, given: str | None) -> Source:
    if given is None:
        return locate(name, config)
    table = Source(name, TableSource(format="table", table=given, columns=config.columns), None)
    if not isinstance(config, SourceConfig):
        return table
    try:
        remedy = "name a file or folder that exists, or a table of the session."
        return locate(name, config.model_copy(update={"path": given, "if_missing": remedy}))
    except SourceError:
        if re.fullmatch(r"\w+(\.\w+){0,2}", given) and spark.catalog.tableExists(given):
            return table
        raise


def _open(spark: SparkSession, config: Config, source: Source, *, input_of: bool, only: Sequence[str] = ()) -> OpenTable:
    """Open a source, each value of which is checked when it is read."""
    if isinstance(source.config, SourceConfig) and source.config.format in FORMATS:
        frame, rows = read_folder(spark, source.name, source.config, source.local, cache=cache_of(config))
        return OpenTable(source, frame, {}, counted=rows)
    raw, files = open_raw(spark, source, cache=cache_of(config), only=only)
    wanted = source.config.columns
    there = source.config.model_copy(update={"columns": {name: kind for name, kind in wanted.items() if name in raw.columns}})
    if not input_of:
        there = source.config
    typed, problems = declared_columns(raw, source.name, there)
    if problems:
        raise problems[0]
    checked = {column: _checked(raw, source, column, value) for column, value in typed.items()}
    lacked = {column: absent(column, kind) for column, kind in _lacked(spark, config, source, raw, input_of=input_of).items()}
    if not wanted:
        checked = {column: named(column) for column in raw.columns} if lacked else {}
    return OpenTable(source, raw, checked | lacked, files)


def _lacked(spark: SparkSession, config: Config, source: Source, raw: DataFrame, *, input_of: bool) -> dict[str, str]:
    """The columns that an input lacks, with their types: of the declared ones, else of those that the config's source has."""
    if not input_of:
        return {}
    wanted = source.config.columns
    if not wanted:
        original, _ = open_raw(spark, locate(source.name, config.prepare.sources[source.name]), cache=cache_of(config))
        wanted = {field.name: ddl_of(field.dataType) for field in original.schema}
    return {column: kind for column, kind in wanted.items() if column not in raw.columns}


def _checked(raw: DataFrame, source: Source, column: str, value: Column) -> Column:
    """The value; one that does not fit its type ends the job that reads it."""
    found, wanted = raw.schema[column].dataType, source.config.columns[column]
    text = is_csv(source.config) and isinstance(found, StringType)
    if found.simpleString() == wanted and not text:
        return value
    wrong = named(column).isNotNull() & value.isNull()
    if text:
        wrong |= named(column).contains(UNREADABLE)
    said = sf.concat(sf.lit(f"__sparkring_strange(source {source.name}: a value of column {column} is not {wanted}: "),
                     named(column).cast("string"), sf.lit("))"))
    return sf.when(wrong, sf.raise_error(said).cast(wanted)).otherwise(value)


def _run(spark: SparkSession, query: str) -> DataFrame:
    try:
        result = spark.sql(query)
        twice = _twice(result)
    except SPARK_ERRORS as error:
        raise ConfigError(f"prepare.query cannot run on the rows to score: {reason(error)}; give an input with the columns that the query "
                          "reads, or correct the query.") from None
    if twice:
        raise SourceError(f"the query yields {twice[1]} columns {twice[0]}, and scores keep all its columns; leave all but one out "
                          "of the query, or give them other names in it (AS).")
    return result


def _twice(rows: DataFrame) -> tuple[str, int] | None:
    """The first name that several columns have, in whatever capitals, and their number; None if there is none."""
    names = Counter(name.lower() for name in rows.columns)
    return next((found for found in names.items() if found[1] > 1), None)


def _without_absent(result: DataFrame, features: Sequence[str]) -> list[str]:
    """The columns of the query that do not depend on what the input lacks."""
    if not absent_behind(result, result.columns):
        return result.columns
    if lacked := absent_behind(result):
        raise SourceError(f"prepare.query chooses rows by {', '.join(lacked)} (WHERE or JOIN), which the input lacks; add it to the input, "
                          "or choose rows by the label: make that null (CASE WHEN), and prepare leaves the row out.")
    for feature in features:
        if feature in result.columns and (lacked := absent_behind(result, [feature])):
            raise SourceError(f"the model reads {feature}, which prepare.query makes of {', '.join(lacked)}, and the input has no such "
                              "column; add it to the input, with nulls if its values are not known.")
    return [name for name in result.columns if name in features or not absent_behind(result, [name])]


def _listed(spark: SparkSession, sources: Mapping[str, Source]) -> tuple[dict[str, Any] | None, tuple[Input, ...]]:
    """The identity of all files, unless there are other sources; and the files."""
    if not all(isinstance(source.config, SourceConfig) for source in sources.values()):
        return None, ()
    found = {name: listed(spark, source, source.config) for name, source in sources.items() if isinstance(source.config, SourceConfig)}
    return {"files": found}, tuple(Input(name, size) for files in found.values() for name, size, _ in files)


@contextmanager
def _errors_explained(opened: Sequence[OpenTable]) -> Iterator[None]:
    """Turn Spark's error about a value or a line of an input into ours."""
    try:
        yield
    except SPARK_ERRORS as error:
        if strange := _STRANGE.search(str(error)):
            raise SourceError(f"{strange.group(1)}; correct it, or the column's type in the config.") from None
        table = _read_by(opened, str(error))
        if table is not None:
            raise unreadable(table, error) from None
        raise


def _read_by(opened: Sequence[OpenTable], said: str) -> OpenTable | None:
    """The source that Spark could not read to its end: the one whose file the error names, else the only one; None for other errors."""
    if not _UNREADABLE.search(said):
        return None
    said = unquote(said)  # Spark writes the name of a file as in a URL
    found = max(opened, key=lambda table: _length_named(table, said), default=None)
    return found if found is not None and (len(opened) == 1 or _length_named(found, said)) else None


def _length_named(table: OpenTable, said: str) -> int:
    """Characters of the longest path of a source that the error names; 0 if it names none."""
    config, local = table.source.config, table.source.local
    if not isinstance(config, SourceConfig):
        return 0
    paths = [str(local), *map(str, table.files[:1])]  # the second for a zip, which is unpacked elsewhere
    if local is None:  # without the scheme and the server, which Spark may write in another way
        paths = [re.split(r"/[^/]*[*?\[{]", urlparse(config.path).path)[0].rstrip("/")]
    return max((len(path) for path in paths if re.search(rf"{re.escape(path)}(?![\w-])", said)), default=0)
