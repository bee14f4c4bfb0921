"""Column expressions that several jobs share. Pure: no session, no data."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sf


def named(name: str) -> Column:
    """The column called exactly ``name``: dots and backticks in it mean nothing."""
    return sf.col("`" + name.replace("`", "``") + "`")


def finite(column: Column) -> Column:
    """``column`` as a double; what is no finite number (null, NaN, an infinity) becomes null."""
    number = column.cast("double")
    return sf.when(sf.abs(number) < float("inf"), number)
