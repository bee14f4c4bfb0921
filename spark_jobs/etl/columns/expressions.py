"""Column expressions that several jobs share. Pure: no session, no data."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, DataType, DateType, DecimalType, IntegralType, StringType, TimestampNTZType, TimestampType

TEMPORAL_TYPES: tuple[type[DataType], ...] = (TimestampType, TimestampNTZType, DateType)
EXACT_TEXT_TYPES: tuple[type[DataType], ...] = (*TEMPORAL_TYPES, BooleanType, DecimalType, IntegralType, StringType)
"""Types whose values have one text each. The text of a double depends on Java's version (JDK-4511638, fixed in 19)."""


def named(name: str) -> Column:
    """The column called exactly ``name``, including dots and backticks."""
    return sf.col("`" + name.replace("`", "``") + "`")


def finite(column: Column) -> Column:
    """``column`` as a double; NaN and infinities become null."""
    number = column.cast("double")
    return sf.when(sf.abs(number) < float("inf"), number)


def seeded_hash(key: Column, seed: int) -> Column:
    """A signed 64-bit hash: XXH64 of the key's text, seeded with XXH64 (seed 42) of ``seed``'s eight little-endian bytes.

    The order of rows hashes an id before its seed (``write_dataset.py``), so the two hashes are independent.

    Source: Collet, "XXH64 algorithm description", https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
    """
    return sf.xxhash64(sf.lit(seed).cast("bigint"), key.cast("string"))
