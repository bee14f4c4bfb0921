"""Slots: whether Spark can run all ranks at once, checked before anything starts.

Spark itself would wait ten minutes for a barrier stage that never fits (SPARK-24819), and forever for one that fits but finds its slots
taken. The first is refused here; for the second ``watched_job.py`` has a deadline. Under dynamic allocation the number is unknown until
tasks have waited for executors (``launch/meeting/driver.py``).
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from sparkring.errors import EnvironmentProblem, NotEnoughSlots
from sparkring.spark_jobs.spark.settings import is_on, setting
from sparkring.spark_jobs.spark.task_resources import TaskResources, registered_profile
from sparkring.spark_jobs.spark.versions.supported import is_connect

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOOK_AGAIN_S = 0.2


def require_slots(spark: SparkSession, *, num_ranks: int, within_s: float, resources: TaskResources | None = None) -> None:
    """Wait until Spark has at least ``num_ranks`` slots, since executors may still be registering.

    Over Spark Connect the slots are known beforehand only for a local master, under dynamic allocation never; the launch's deadline
    applies instead.

    Args:
        spark: A classic or a Connect session.
        num_ranks: Slots needed at once.
        within_s: Seconds to wait for them; a local master is refused at once, since it never grows.
        resources: Those of each rank's task, if its stage has a profile; None: the session's own.
    Raises:
        EnvironmentProblem: dynamic allocation is on together with a setting that rules out a ring.
        NotEnoughSlots: Spark has fewer slots.
    """
    master = master_of(spark)
    if has_dynamic_allocation(spark):
        require_on_demand(spark, num_ranks=num_ranks)
        return
    deadline = time.monotonic() + (0 if is_local(master) else within_s)
    while (slots := slots_of(spark, resources)) is not None and slots < num_ranks:
        if time.monotonic() >= deadline:
            raise too_few_slots(master, wanted=num_ranks, slots=slots, resources=resources)
        time.sleep(LOOK_AGAIN_S)


def has_dynamic_allocation(spark: SparkSession) -> bool:
    """Whether Spark adds executors once tasks wait for them. It has no barrier stages then (SPARK-24942)."""
    return is_on(spark, "spark.dynamicAllocation.enabled") and not is_local(master_of(spark))


def require_on_demand(spark: SparkSession, *, num_ranks: int) -> None:
    """Check that executors for so many ranks can be added on demand. If some never come, the launch's deadline applies.

    Raises:
        EnvironmentProblem: another setting of the session rules out a ring under dynamic allocation.
        NotEnoughSlots: the session does not allow so many executors.
    """
    if is_connect(spark):
        raise EnvironmentProblem(
            "spark.dynamicAllocation.enabled is true, so Spark refuses barrier stages (SPARK-24942), and over Spark Connect a ring "
            "needs one; start the server with it off and spark.executor.instances set.")
    if is_on(spark, "spark.speculation"):
        raise EnvironmentProblem("spark.speculation and spark.dynamicAllocation.enabled are both true: Spark might start a second task for "
                                 "a rank; set spark.speculation=false.")
    ratio = setting(spark, "spark.dynamicAllocation.executorAllocationRatio") or "1"
    if float(ratio) < 1:
        raise EnvironmentProblem(f"spark.dynamicAllocation.executorAllocationRatio is {ratio}: Spark would bring executors for that share "
                                 "of the ranks only; set it to 1.")
    executors, cores = setting(spark, "spark.dynamicAllocation.maxExecutors"), setting(spark, "spark.executor.cores")
    if executors and cores:
        most, master = int(executors) * (int(cores) // int(setting(spark, "spark.task.cpus") or 1)), master_of(spark)
        if most < num_ranks:
            raise NotEnoughSlots(wanted=num_ranks, slots=most, where=f"{master} with spark.dynamicAllocation.maxExecutors={executors}",
                                 remedy=f"raise that{_or_fewer_ranks(most)}")


def too_few_slots(master: str, *, wanted: int, slots: int | None, resources: TaskResources | None = None) -> NotEnoughSlots:
    """The error of a session with this master, which has ``slots`` of the ``wanted`` slots, or an unknown number of them."""
    more = f"set spark.master=local[{wanted}]" if slots and is_local(master) else f"give Spark more executors or {_what_of(resources)}"
    other = ", or let other jobs there end" if slots is None else _or_fewer_ranks(slots)
    return NotEnoughSlots(wanted=wanted, slots=slots, where=master, remedy=more + other)


def _or_fewer_ranks(slots: int) -> str:
    return f", or set train.num_ranks to at most {slots}" if slots else ""


def _what_of(resources: TaskResources | None) -> str:
    """What more of it would make more slots."""
    return "cores" if resources is None else f"GPUs (a rank takes {resources.gpus}, and {resources.cpus} core(s))"


def is_local(master: str) -> bool:
    """Whether Spark is a single process, which never gets more slots."""
    return re.match(r"local(\[|$)", master) is not None


def slots_of(spark: SparkSession, resources: TaskResources | None = None) -> int | None:
    """Ranks that the session could run at once, with such tasks; None over Spark Connect, except on a local master."""
    sc = spark_context(spark)
    return local_slots(master_of(spark)) if sc is None else _slots_of(sc, resources)


def spark_context(spark: SparkSession) -> SparkContext | None:
    """The session's SparkContext, or None over Spark Connect."""
    return None if is_connect(spark) else spark.sparkContext


def master_of(spark: SparkSession) -> str:
    """The session's master, also for messages."""
    return setting(spark, "spark.master") or "the Spark server"


def _slots_of(sc: SparkContext, resources: TaskResources | None) -> int:
    """The number that Spark compares a barrier stage with: it counts in cores, task cpus and task resources."""
    scala = sc._jsc.sc()  # noqa: SLF001 (PySpark offers no other way to it)
    profile = scala.resourceProfileManager().defaultResourceProfile() if resources is None else registered_profile(sc, resources)
    return int(scala.maxNumConcurrentTasks(profile))


def local_slots(master: str) -> int | None:
    """Slots of ``local`` and ``local[n]``; None for ``local[*]`` and all other masters."""
    if master == "local":
        return 1
    match = re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", master)
    return int(match.group(1)) if match else None
