"""Spark's own errors: their exception classes, and the one line of each that names the cause."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from logging import Logger
from threading import Lock

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException

from sparkring.errors import DatasetError, SourceError, SparkringError, StorageError
from sparkring.spark_jobs.spark.versions.query_logs import query_loggers

_RAISED = re.compile(r"[A-Za-z_][\w.]*: ")
"""The last line of a traceback: the exception's class and message."""
_TASK_FAILED = re.compile(r"^(?:\S+: )?Job aborted due to stage failure: .*? \(TID \d+\) \(.*?\): (?:org\.apache\.spark\.[\w.$]+: )?(?=.)")
"""Before the cause where a task has failed, over Py4J: how often, and on which executor."""
_OURS = {each.__name__: each for each in (DatasetError, SourceError, StorageError)}
_RAISED_OURS = re.compile(rf"^sparkring\.errors\.({'|'.join(_OURS)}): (.*)$", re.MULTILINE)

SPARK_ERRORS = (PySparkException, Py4JError)
"""Raised by calls into Spark, over Connect and over Py4J."""

CLIENTS = {"s3": "org.apache.hadoop:hadoop-aws", "s3a": "org.apache.hadoop:hadoop-aws", "abfs": "org.apache.hadoop:hadoop-azure",
           "abfss": "org.apache.hadoop:hadoop-azure", "gs": "com.google.cloud.bigdataoss:gcs-connector"}
"""URL scheme -> the package by which Spark reads it; Spark ships none of these."""


@contextmanager
def failed_queries_unlogged() -> Iterator[None]:
    """Keep PySpark from logging thousands of characters about errors of the block, which say the same in a sentence.

    Blocks of several threads may overlap: the first one disables the loggers, the last one restores them.
    """
    with _UNLOGGED.lock:
        if not _UNLOGGED.blocks:
            _UNLOGGED.before = [(logger, logger.disabled) for logger in query_loggers()]
            for logger, _ in _UNLOGGED.before:
                logger.disabled = True
        _UNLOGGED.blocks += 1
    try:
        yield
    finally:
        with _UNLOGGED.lock:
            _UNLOGGED.blocks -= 1
            if not _UNLOGGED.blocks:
                for logger, disabled in _UNLOGGED.before:
                    logger.disabled = disabled


@dataclass
class _Unlogged:
    """How many blocks have disabled PySpark's loggers, and whether each was disabled before."""

    lock: Lock = field(default_factory=Lock)
    blocks: int = 0
    before: list[tuple[Logger, bool]] = field(default_factory=list)


_UNLOGGED = _Unlogged()


def lacks_client(error: Exception) -> bool:
    """Whether Spark lacks the client for an address it was given."""
    return any(said in str(error) for said in ("S3AFileSystem", "AzureBlobFileSystem", "No FileSystem for scheme"))


def rewriting(error: Exception) -> str:
    """Advice to write timestamps again that Spark cannot read; else an empty text."""
    return ", or write its timestamps in microseconds, in pandas with to_parquet(path, coerce_timestamps='us')" if (
        "TIMESTAMP(NANOS" in str(error)) else ""


def error_of_worker(error: Exception) -> SparkringError | None:
    """The error of ours that ended a Python worker's task, whose traceback Spark passes on as text; None if it was another one.

    Of a chain of errors it is the last. Over Py4J (Spark 3.5, writing) the text stands in Java's trace.
    """
    found = _RAISED_OURS.findall(str(error))
    if not found:
        return None
    kind, text = found[-1]
    return _OURS[kind](text)


def reason(error: Exception) -> str:
    """The line of an error that names its cause, without the plan, the query and the stack, and without the call that Py4J puts first.

    For an exception in a Python worker this is that exception's message: the line after the last indented one of its traceback.
    """
    ours = error_of_worker(error)
    if ours is not None:
        return str(ours).rstrip(".")
    if isinstance(error, PythonException):
        text = str(error).splitlines()
        raised = [line for before, line in pairwise(text) if before.startswith("  ") and _RAISED.match(line)]
        if raised:
            return raised[0].partition(": ")[2].rstrip(".")
    lines = (" ".join(line.split()).strip(": ") for line in str(error).splitlines())
    said = next((line for line in lines if line and not line.startswith("An error occurred while calling")), type(error).__name__)
    return _TASK_FAILED.sub("", said).rstrip(".")
