"""An Arrow table as a data frame, and back.

Spark takes and gives Arrow tables from 4.0 on (SPARK-48220, SPARK-47365). Spark 3.5 takes Python's rows: not pandas, which would make
floats of integers with nulls. The tables that go this way are small: vocabularies and lists of files.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A data frame of the table's rows, with Spark's types for its own."""
    if hasattr(DataFrame, "toArrow"):  # of the same release as createDataFrame(pa.Table)
        return spark.createDataFrame(table)
    return frame_of_rows(spark, table)


def table_of(frame: DataFrame) -> pa.Table:
    """All rows of a data frame, in its order."""
    return frame.toArrow() if hasattr(DataFrame, "toArrow") else table_of_batches(frame)


def frame_of_rows(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The way of Spark 3.5, which all versions have."""
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return spark.createDataFrame(rows, from_arrow_schema(table.schema))


def table_of_batches(frame: DataFrame) -> pa.Table:
    """The way of Spark 3.5, which classic sessions of all versions have."""
    batches: list[pa.RecordBatch] = frame._collect_as_arrow()  # type: ignore[operator]  # noqa: SLF001 (what toPandas calls)
    return pa.Table.from_batches(batches, None if batches else to_arrow_schema(frame.schema))
