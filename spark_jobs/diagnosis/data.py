"""Checks of what ``prepare`` reads: the sources as far as this machine reaches them, and the query on empty tables.

No rows are read, and a table that only Spark reaches is not opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkring.conf.schema import Config, SourceConfig
from sparkring.errors import SparkringError
from sparkring.spark_jobs.diagnosis.check import Check, sentence, verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkring.spark_jobs.etl.sources.tables import Source


def check_sources(config: Config | None) -> Check:
    """Look whether paths exist and headers hold the declared columns."""
    if config is None:
        return Check("sources", "ok", "not looked at: that takes a config, which names them")
    from sparkring.spark_jobs.etl.sources.first_look import first_look

    look = first_look(config.prepare.sources)
    here, away = [source.name for source in look.sources if source.local], [source.name for source in look.sources if not source.local]
    said = {"found": here, "header has the declared columns": list(look.headers), "not looked at, only Spark reaches it": away}
    fine = ", ".join(f"{what}: {' '.join(names)}" for what, names in said.items() if names)
    return verdict("sources", [("fail", problem.found, sentence(problem.remedy)) for problem in look.problems], fine=fine)


def check_query(spark: SparkSession, config: Config | None) -> Check:
    """Let Spark analyse the query on empty tables of the declared types, and look for the columns that the config names."""
    if config is None:
        return Check("query", "ok", "not looked at: that takes a config, which has it")
    from sparkring.spark_jobs.etl.examples import run_query, tables
    from sparkring.spark_jobs.etl.sources.tables import Source

    frames = {}
    for name, source in config.prepare.sources.items():
        empty = _empty(spark, Source(name, source, None))
        if empty is None:
            return Check("query", "ok", f"not looked at: the config does not declare the columns of source {name}")
        frames[name] = empty
    problems: Sequence[SparkringError] = ()
    with tables(spark, frames):
        try:
            run_query(spark, config.prepare)
        except SparkringError as error:
            problems = error.problems or (error,)
    return verdict("query", [("fail", problem.found, sentence(problem.remedy)) for problem in problems],
                   fine="it yields the columns that the config names, by Spark's analysis on empty tables")


def _empty(spark: SparkSession, source: Source) -> DataFrame | None:
    """A table without rows; None if its columns are not declared."""
    from pyspark.sql.types import StructField, StructType

    from sparkring.spark_jobs.etl.sources.declared import declared_type
    from sparkring.spark_jobs.etl.sources.folders import FORMATS

    if isinstance(source.config, SourceConfig) and source.config.format in FORMATS:
        return spark.createDataFrame([], FORMATS[source.config.format])
    fields = [StructField(name, declared_type(source.name, source.config, name)) for name in source.config.columns]
    return spark.createDataFrame([], StructType(fields)) if fields else None
