"""Spark's own complaints: which exceptions they are, and the one line of them that says what is wrong."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JError)
"""What a call into Spark raises, over Connect and over Py4J."""


def reason(error: Exception) -> str:
    """The line that says why, without the plan, the query and the stack below it; Py4J puts the place of the call before it."""
    lines = (" ".join(line.split()).strip(": ") for line in str(error).splitlines())
    said = next((line for line in lines if line and not line.startswith("An error occurred while calling")), type(error).__name__)
    return said.rstrip(".")
