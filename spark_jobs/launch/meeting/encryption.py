"""Refuse a ring in plaintext where Spark encrypts its own traffic, unless the config allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkring.conf.schema import RingConfig
from sparkring.errors import ConfigError
from sparkring.spark_jobs.spark.settings import is_on
from sparkring.spark_jobs.spark.slots import master_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENCRYPTING = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.enabled", "spark.ssl.rpc.enabled")
"""Properties that make Spark encrypt the traffic between its processes."""


def encryption_of(spark: SparkSession) -> list[str]:
    """Those of ``ENCRYPTING`` that are true."""
    return [name for name in ENCRYPTING if is_on(spark, name)]


def require_plaintext_allowed(spark: SparkSession, config: RingConfig) -> None:
    """Check that gradients may travel in plaintext between executors, as Gloo sends them; within one machine nothing travels.

    Raises:
        ConfigError: Spark encrypts its traffic, and the config does not allow a ring in plaintext.
    """
    if config.allow_plaintext or master_of(spark).partition("[")[0] == "local":
        return
    if switched_on := encryption_of(spark):
        raise ConfigError(f"{switched_on[0]} is true, but the ring's gradients travel between hosts in plaintext and unauthenticated, "
                          "as Gloo sends them; keep the executors on a network of their own and set train.ring.allow_plaintext=true, "
                          "or train on one machine.")
