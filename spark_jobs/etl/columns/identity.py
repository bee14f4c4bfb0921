"""The row id where the query yields none: made of the row's content, and of a number among exact copies. Column expressions only.

    row       a                  b                        copy   row id, without its sign
    7, x      XXH64 of 7, x      with another seed        0      XXH64 of a, b, 0
    7, x      the same           the same                 1      XXH64 of a, b, 1
    8, x      XXH64 of 8, x      with another seed        0      ...

The id depends on the row and its copies alone: not on other rows, files, partitions or the order of rows. All columns of the query
are content, but not the column of ``split: {by: column}``, since a row that moves to another split is still that row. Copies are
alike in everything, so which of them has which number is of no account.

Ids have 63 bits. Two rows of different content may get one by chance: among n rows with probability n^2 / 2^64, 1e-5 of 16 M rows.
Such rows count their copies apart, since ``a`` and ``b`` have 128 bits, and so have one id both: ``split_layouts``, which counts the
rows of each id, refuses them.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, IntegralType, MapType, StructType

from sparkring.conf.schema import ColumnSplit, PrepareConfig
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.spark.versions.variants import VARIANT

_A, _B, _COPY = "__content_a", "__content_b", "__copy"


def content_columns(config: PrepareConfig, columns: Collection[str]) -> tuple[str, ...]:
    """The columns of the query that are a row's content, by name."""
    split = config.split.column if isinstance(config.split, ColumnSplit) else None
    return tuple(sorted(column for column in columns if column != split))


def with_row_id(rows: DataFrame, columns: Collection[str], *, name: str) -> DataFrame:
    """Add a column of row ids, non-negative and non-null.

    Args:
        rows: The rows; their names differ.
        columns: Those that are content, in a fixed order.
        name: Name of the new column.
    """
    parts = content([(named(column), rows.schema[column].dataType) for column in columns])
    hashed = rows.withColumns({_A: sf.xxhash64(*parts), _B: sf.xxhash64(sf.lit(1), *parts)})
    copies = Window.partitionBy(_A, _B).orderBy(_A)
    numbered = hashed.withColumn(_COPY, sf.row_number().over(copies) - 1)
    row_id = sf.xxhash64(_A, _B, _COPY).bitwiseAND(sf.lit(2**63 - 1))
    return numbered.withColumn(name, row_id).drop(_A, _B, _COPY)


def content(columns: Collection[tuple[Column, DataType]]) -> list[Column]:
    """What to hash of columns so that equal hashes mean equal values: Spark's hash skips nulls, so whether a value is null is hashed, too.

    Integers of all widths are hashed alike, since a file's type for them may change while the numbers stay. Spark hashes no maps
    and no variants; they are hashed as JSON.
    """
    parts = []
    for column, kind in columns:
        value = column.cast("bigint") if isinstance(kind, IntegralType) else sf.to_json(column) if _holds_a_map(kind) else column
        parts += [value, column.isNull()]
    return parts


def _holds_a_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_holds_a_map(field.dataType) for field in kind)
    return _holds_a_map(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, (MapType, *VARIANT))
