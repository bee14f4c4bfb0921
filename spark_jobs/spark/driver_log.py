"""What the JVM of the driver logs, while a block runs. With a local master that is all that Spark logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sparkring.spark_jobs.spark.slots import spark_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def only_errors(spark: SparkSession, logger: str) -> Iterator[None]:
    """Log no warning of ``logger`` while the block runs. Over Spark Connect nothing changes: its JVM cannot be reached."""
    context = spark_context(spark)
    if context is None:
        yield
        return
    log4j = context._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # noqa: SLF001 (no public name leads to the JVM)
    before = log4j.LogManager.getLogger(logger).getLevel()
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.ERROR)
    try:
        yield
    finally:
        log4j.core.config.Configurator.setLevel(logger, before)
