"""A function of each group of rows, from an Arrow table to an Arrow table.

``applyInArrow`` of groups is of Spark 4.0 (SPARK-40559). Spark 3.5 hands a group over as a pandas data frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

OfGroup = Callable[[tuple[pa.Scalar, ...], pa.Table], pa.Table]


def apply_to_groups(frame: DataFrame, columns: tuple[str, ...], apply: OfGroup, schema: str) -> DataFrame:
    """The rows that ``apply`` makes of each group.

    Args:
        frame: The rows.
        columns: A group has the same values in these.
        apply: Gets those values and the group's rows; runs in a task. A function with type hints, no partial: Spark 4.1 reads them.
        schema: Of what it returns, as Spark's DDL.
    """
    groups = frame.groupBy(*columns)
    return groups.applyInArrow(apply, schema) if hasattr(groups, "applyInArrow") else apply_by_pandas(frame, columns, apply, schema)


def apply_by_pandas(frame: DataFrame, columns: tuple[str, ...], apply: OfGroup, schema: str) -> DataFrame:
    """The way of Spark 3.5, which all versions have."""
    def of_pandas(key: tuple[Any, ...], rows: Any) -> Any:
        return apply(tuple(map(pa.scalar, key)), pa.Table.from_pandas(rows, preserve_index=False)).to_pandas()

    return frame.groupBy(*columns).applyInPandas(of_pandas, schema)
