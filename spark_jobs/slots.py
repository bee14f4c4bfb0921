"""Slots: whether Spark can run all ranks at once, asked before anything starts.

Spark itself would wait ten minutes with a barrier stage that never fits (SPARK-24819), and for ever with one that fits but
finds its slots taken. The first is refused here; for the second ``spark_job.py`` has a deadline.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from sparkring.errors import EnvironmentProblem, NotEnoughSlots

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOOK_AGAIN_S = 0.2


def require_slots(spark: SparkSession, *, num_ranks: int, within_s: float) -> None:
    """Wait until Spark has at least ``num_ranks`` slots, as executors may still be registering.

    Over Spark Connect only a local master's slots can be known beforehand; others are found out by the launch's deadline.

    Args:
        spark: A classic or a Connect session.
        num_ranks: Slots needed at once.
        within_s: Seconds to wait for them; a local master is refused at once, since it never grows.
    Raises:
        EnvironmentProblem: dynamic allocation is on.
        NotEnoughSlots: there are fewer.
    """
    if (spark.conf.get("spark.dynamicAllocation.enabled", "false") or "").lower() == "true":
        raise EnvironmentProblem(
            "spark.dynamicAllocation.enabled is true, but a ring needs executors that are there from the start, and Spark refuses barrier "
            "stages with it (SPARK-24942); start the session with it off and spark.executor.instances set.")
    master = master_of(spark)
    never_grows = re.match(r"local(\[|$)", master)
    deadline = time.monotonic() + (0 if never_grows else within_s)
    while (slots := slots_of(spark)) is not None and slots < num_ranks:
        if time.monotonic() >= deadline:
            raise NotEnoughSlots(wanted=num_ranks, slots=slots, master=master)
        time.sleep(LOOK_AGAIN_S)


def slots_of(spark: SparkSession) -> int | None:
    """Ranks that the session could run at once; None over Spark Connect, where only a local master tells."""
    sc = spark_context(spark)
    return local_slots(master_of(spark)) if sc is None else _slots_of(sc)


def spark_context(spark: SparkSession) -> SparkContext | None:
    """The session's SparkContext, or None over Spark Connect."""
    return None if type(spark).__module__.startswith("pyspark.sql.connect") else spark.sparkContext


def master_of(spark: SparkSession) -> str:
    """What the session runs on, for messages too."""
    return spark.conf.get("spark.master", None) or "the Spark server"


def _slots_of(sc: SparkContext) -> int:
    """What Spark itself will compare a barrier stage with: cores, task cpus and task resources are all counted in."""
    scala = sc._jsc.sc()  # noqa: SLF001 (PySpark offers no other way to it)
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def local_slots(master: str) -> int | None:
    """Slots of ``local`` and ``local[n]``; None for ``local[*]`` and all other masters."""
    if master == "local":
        return 1
    match = re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", master)
    return int(match.group(1)) if match else None
