"""Whether a ring in plaintext is what the user wants: not where Spark encrypts its own traffic, unless the config says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkring.conf.schema import RingConfig
from sparkring.errors import ConfigError
from sparkring.spark_jobs.spark.slots import master_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENCRYPTING = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.enabled", "spark.ssl.rpc.enabled")
"""Properties by which Spark encrypts what goes between its processes."""


def require_plaintext_allowed(spark: SparkSession, config: RingConfig) -> None:
    """Check that gradients may travel in plaintext between executors, as Gloo sends them; within one machine nothing travels.

    Raises:
        ConfigError: Spark encrypts its traffic, and the config does not say that the ring need not.
    """
    if config.allow_plaintext or master_of(spark).partition("[")[0] == "local":
        return
    switched_on = [name for name in ENCRYPTING if (spark.conf.get(name, "false") or "").lower() == "true"]
    if switched_on:
        raise ConfigError(f"{switched_on[0]} is true, but the ring's gradients travel between hosts in plaintext and unauthenticated, "
                          "as Gloo sends them; keep the executors on a network of their own and set train.ring.allow_plaintext=true, "
                          "or train on one machine.")
