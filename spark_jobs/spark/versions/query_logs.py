"""Loggers by which PySpark writes a failed query, with Java's whole stack, before it raises the same.

They came with structured logging in Spark 4.0; Spark 3.5 only raises.
"""

from __future__ import annotations

import logging

_NAMES = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def query_loggers() -> list[logging.Logger]:
    """The loggers; none in Spark 3.5."""
    try:
        from pyspark.logger import PySparkLogger
    except ModuleNotFoundError:
        return []
    return [PySparkLogger.getLogger(name) for name in _NAMES]
