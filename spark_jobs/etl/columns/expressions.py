"""Column expressions that several jobs share. Pure: no session, no data."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, DataType, DateType, DecimalType, IntegralType, StringType, TimestampNTZType, TimestampType

TEMPORAL_TYPES: tuple[type[DataType], ...] = (TimestampType, TimestampNTZType, DateType)
EXACT_TEXT_TYPES: tuple[type[DataType], ...] = (*TEMPORAL_TYPES, BooleanType, DecimalType, IntegralType, StringType)
"""Types whose values have one text each. That of a double depends on the release of Java (JDK-4511638, mended in 19)."""


def named(name: str) -> Column:
    """The column called exactly ``name``: dots and backticks in it mean nothing."""
    return sf.col("`" + name.replace("`", "``") + "`")


def finite(column: Column) -> Column:
    """``column`` as a double; what is no finite number (null, NaN, an infinity) becomes null."""
    number = column.cast("double")
    return sf.when(sf.abs(number) < float("inf"), number)


def seeded_hash(key: Column, seed: int) -> Column:
    """64 bits, signed: XXH64 of the key's text, seeded with XXH64 of the eight little-endian bytes of ``seed``, that one seeded with 42.
    The order of rows hashes an id before its seed (``write_dataset.py``), so neither says anything of the other.

    Source: Collet, "XXH64 algorithm description", https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
    """
    return sf.xxhash64(sf.lit(seed).cast("bigint"), key.cast("string"))
