"""The Spark session of the ETL tests: a test module names this one in ``pytest_plugins`` and asks for ``spark``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sparkring.conf.schema import SparkConfig
from sparkring.spark_jobs.spark.session import spark_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two slots, as the jobs make it for themselves."""
    session = spark_session(SparkConfig(master="local[2]"), app_name="etl tests")
    yield session
    session.stop()


def end_jvm() -> None:
    """End the JVM that this process's stopped sessions leave running for the next one, with the environment of their time."""
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(300)
    SparkContext._gateway = SparkContext._jvm = None
