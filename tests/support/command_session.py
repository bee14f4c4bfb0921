"""Commands of the command line in one Spark session of this process, on local[4]."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sparkring.__main__ import app
from sparkring.conf.schema import SparkConfig
from sparkring.spark_jobs.spark.session import spark_session
from tests.support.ring_driver import bytecode


@contextmanager
def command_session(folder: Path, name: str) -> Iterator[SparkSession]:
    """A session whose ranks, which inherit its environment, keep compiled bytecode under ``folder``."""
    with patch.dict(os.environ, bytecode(folder)):
        session = spark_session(SparkConfig(master="local[4]"), app_name=name)
    yield session
    session.stop()


def said(*arguments: str) -> str:
    """What a command, in the session that is open, says on stdout; it has to end well."""
    ended = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.stdout
