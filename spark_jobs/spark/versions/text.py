"""Whether text is well-formed UTF-8.

``is_valid_utf8`` is of Spark 4.0. In Spark 3.5 Java decodes the bytes, with U+FFFD for what is not well-formed, and encodes
the result: only well-formed bytes come back as they were.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sf


def is_valid_utf8(name: str) -> Column:
    """Whether the text of column ``name`` is well-formed; null for null."""
    return sf.is_valid_utf8(name) if hasattr(sf, "is_valid_utf8") else is_valid_utf8_by_java(name)


def is_valid_utf8_by_java(name: str) -> Column:
    """The way of Spark 3.5. From 4.0 on ``decode`` raises where it replaced, so there this is no second way."""
    data = sf.col(name).cast("binary")
    return sf.encode(sf.decode(data, "UTF-8"), "UTF-8") == data
