"""What Spark would do for a frame, as far as scoring new rows must know: which columns it reads, and whether it takes rows one by one.

The text of EXPLAIN says both, in classic sessions and over Connect: Spark leaves out of its plan what it does not need. Where a text is
not understood, rows are taken not to be independent, which costs a resume and nothing else.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sparkring.spark_jobs.etl.columns.expressions import named

_ABSENT = re.compile(r"__sparkring_absent\((.*?)\)")
_FIELDS = "spark.sql.debug.maxToStringFields"
_NODE = re.compile(r"[\s:+*-]*(?:\*?\(\d+\) )?(\w+)")
_BY_ROW = {"AdaptiveSparkPlan", "ColumnarToRow", "Project", "Filter", "FileScan", "BatchScan"}
"""Nodes that make each of their rows of one row of a file."""
_ACROSS_ROWS = "monotonically_increasing_id"


def absent(column: str, kind: str) -> Column:
    """A column that the rows lack: Spark may plan with it, and never reads it where nothing depends on it."""
    return sf.raise_error(sf.lit(f"__sparkring_absent({column})")).cast(kind)


def absent_behind(frame: DataFrame, columns: Sequence[str] = ()) -> list[str]:
    """The absent columns that these columns are made of; without any, those that decide which rows there are."""
    wanted = frame.select([named(column) for column in columns] if columns else [sf.lit(1)])
    return list(dict.fromkeys(_ABSENT.findall(_plan_of(wanted))))


def takes_rows_one_by_one(frame: DataFrame) -> bool:
    """Whether each row is made of one row of a file, whatever the others are."""
    _, _, plan = _plan_of(frame).partition("== Physical Plan ==")
    nodes = [found.group(1) for line in plan.splitlines() if (found := _NODE.match(line))]
    return bool(nodes) and set(nodes) <= _BY_ROW and _ACROSS_ROWS not in plan


def _plan_of(frame: DataFrame) -> str:
    spark, view = frame.sparkSession, f"sparkring_{uuid.uuid4().hex}"
    before = spark.conf.get(_FIELDS, None)
    frame.createOrReplaceTempView(view)
    spark.conf.set(_FIELDS, str(10**6))  # by default a plan shows 25 columns
    try:
        text: str = spark.sql(f"EXPLAIN SELECT * FROM {view}").collect()[0][0]  # noqa: S608 (the name is ours)
    finally:
        spark.catalog.dropTempView(view)
        if before is None:
            spark.conf.unset(_FIELDS)
        else:
            spark.conf.set(_FIELDS, before)
    return text
