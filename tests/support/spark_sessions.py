"""Spark sessions of tests: a test module names this one in ``pytest_plugins`` and asks for ``spark``.

All modules of a process share one Spark context, whose Python workers and rank servers keep torch imported. Each module has a
session of its own on it, so that settings and views end with the module. A module that breaks its workers, or whose ranks need
another environment, takes ``own_context``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sparkring.conf.schema import SparkConfig
from sparkring.spark_jobs.spark.session import spark_session
from tests.support.ring_driver import bytecode

MASTER = "local[4]"
CONF = {"spark.sql.shuffle.partitions": "4",
        "spark.hadoop.fs.defaultFS": "file:///"}  # also where tests of HDFS have set HADOOP_CONF_DIR before this JVM started


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A new session with four slots, on the context that the modules of this process share."""
    with patch.dict(os.environ, bytecode(tmp_path_factory.getbasetemp())):
        session = spark_session(SparkConfig(master=MASTER, conf=CONF), app_name="tests")
    yield session
    _forget(session)


@contextmanager
def own_context(master: str) -> Iterator[SparkSession]:
    """A session on a context that nothing else uses; the shared one ends here, and the next module that needs it starts another."""
    end_context()
    session = spark_session(SparkConfig(master=master), app_name="tests")
    yield session
    session.stop()


def end_context() -> None:
    """End the Spark context of this process, if there is one."""
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()


def end_jvm() -> None:
    """End the JVM of this process, which outlives its contexts: the next one starts with the environment of its own time."""
    end_context()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(300)
    SparkContext._gateway = SparkContext._jvm = None


def _forget(session: SparkSession) -> None:
    """Have the next call of ``spark_session`` make a new session, also where the context goes on."""
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    if SparkContext._active_spark_context is not None:
        jvm: Any = session._jvm
        sessions = SparkSession._get_j_spark_session_class(jvm) if hasattr(SparkSession, "_get_j_spark_session_class") else jvm.SparkSession
        sessions.clearDefaultSession()
        sessions.clearActiveSession()
