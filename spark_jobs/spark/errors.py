"""Spark's own errors: which exceptions they are, and the one line that says what is wrong."""

from __future__ import annotations

import re
from itertools import pairwise

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException

_RAISED = re.compile(r"[A-Za-z_][\w.]*: ")
"""The last line of a traceback: the exception's class and message."""

SPARK_ERRORS = (PySparkException, Py4JError)
"""Raised by calls into Spark, over Connect and over Py4J."""

CLIENTS = {"s3": "org.apache.hadoop:hadoop-aws", "s3a": "org.apache.hadoop:hadoop-aws", "abfs": "org.apache.hadoop:hadoop-azure",
           "abfss": "org.apache.hadoop:hadoop-azure", "gs": "com.google.cloud.bigdataoss:gcs-connector"}
"""URL scheme -> the package by which Spark reads it; Spark ships none of these."""


def lacks_client(error: Exception) -> bool:
    """Whether Spark lacks the client for an address it was given."""
    return any(said in str(error) for said in ("S3AFileSystem", "AzureBlobFileSystem", "No FileSystem for scheme"))


def reason(error: Exception) -> str:
    """The line that says why, without the plan, the query and the stack; Py4J puts the call before it.

    For an exception in a Python worker this is that exception's message: the line after the last indented one of its traceback.
    """
    if isinstance(error, PythonException):
        text = str(error).splitlines()
        raised = [line for before, line in pairwise(text) if before.startswith("  ") and _RAISED.match(line)]
        if raised:
            return raised[0].partition(": ")[2].rstrip(".")
    lines = (" ".join(line.split()).strip(": ") for line in str(error).splitlines())
    said = next((line for line in lines if line and not line.startswith("An error occurred while calling")), type(error).__name__)
    return said.rstrip(".")
