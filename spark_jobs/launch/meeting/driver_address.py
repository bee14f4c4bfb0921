"""The address at which executors reach servers on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkring.spark_jobs.launch.meeting.hosts import ring_address
from sparkring.spark_jobs.spark.slots import master_of, spark_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def driver_address(spark: SparkSession) -> tuple[str, str]:
    """The driver's IPv4 address towards the ring, and the interface that owns it: loopback where all of the ring is on this machine.

    Args:
        spark: A classic session.
    Raises:
        EnvironmentProblem: the driver has no address that other hosts can reach.
    """
    context = spark_context(spark)
    assert context is not None
    host = context.getConf().get("spark.driver.host") or "localhost"
    return ring_address(host, on_one_host=master_of(spark).partition("[")[0] == "local" or _is_loopback(host))


def _is_loopback(host: str) -> bool:
    """Whether ``host`` is loopback for executors too. Of another name only the driver may think so, as by Debian's /etc/hosts."""
    return host.partition(".")[0] in ("127", "localhost")
