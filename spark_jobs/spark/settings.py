"""Spark's properties, as a session gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def setting(spark: SparkSession, key: str) -> str | None:
    """A Spark property, classic or over Connect; None where it is not set, or where the session keeps it to itself.

    Serverless compute of Databricks raises for most properties, whatever default the caller gives.
    """
    from pyspark.errors import PySparkException

    try:
        return spark.conf.get(key, None)
    except PySparkException as error:
        if "CONFIG_NOT_AVAILABLE" not in str(error):
            raise
        return None


def is_on(spark: SparkSession, key: str) -> bool:
    """Whether a property is true."""
    return (setting(spark, key) or "false").lower() == "true"
