"""Where the ranks of a ring get their GPUs.

    master             launcher        GPUs
    local[n]           any             dealt out: rank r gets the r-th that the driver could use, and that no other ring has; Spark
                                       schedules none there
    standalone, YARN,  barrier         Spark's, by a resource profile of the ring's stage: a GPU and train.ring.threads_per_rank cores
    Kubernetes                         for each task, whatever the session's tasks get
    any other case     any             Spark's, by the session's own spark.task.resource.gpu.amount, which holds for every stage

Other cases are upstream's launcher, which starts its stage itself; another cluster manager; and dynamic allocation: Spark would start
further executors for a profile, while those of the session keep GPUs and cores until they have been idle for a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sparkring.conf.schema import RingConfig
from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.launch.gpus.visible import VARIABLE, visible_gpus
from sparkring.spark_jobs.launch.under_way import RINGS
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason
from sparkring.spark_jobs.spark.settings import setting
from sparkring.spark_jobs.spark.slots import has_dynamic_allocation, is_local, master_of
from sparkring.spark_jobs.spark.task_resources import EXECUTOR_AMOUNT, TASK_AMOUNT, TaskResources, never_assigned, profile_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OR_CPUS = "train.ring.allow_cpu_fallback=true to train on CPUs instead"


@contextmanager
def dealt_gpus(spark: SparkSession, config: RingConfig, *, num_ranks: int) -> Iterator[tuple[str, ...] | None]:
    """While a ring runs: the GPUs of its ranks 0, 1, ... where the launcher deals them out; None where it does not.

    No two rings of a driver that run at once get the same one. With ``allow_cpu_fallback`` there may be fewer than ranks.

    Raises:
        EnvironmentProblem: there are fewer GPUs than ranks, or other rings have them.
    """
    found = gpus_to_deal(spark, config, num_ranks=num_ranks)
    with RINGS.one(found or (), most=num_ranks) as dealt:
        if found is not None and len(dealt) < num_ranks and not config.allow_cpu_fallback:
            raise EnvironmentProblem(
                f"device is cuda, and of {describe(found)} other rings of this driver leave {len(dealt)} for {num_ranks} rank(s); run "
                f"fewer rings at once, or set {_OR_CPUS}.")
        yield None if found is None else dealt


def gpus_to_deal(spark: SparkSession, config: RingConfig, *, num_ranks: int) -> tuple[str, ...] | None:
    """The GPUs that the launcher deals out to rings of so many ranks; None where it does not.

    With ``allow_cpu_fallback`` there may be fewer than ranks.

    Raises:
        EnvironmentProblem: there are fewer GPUs than ranks.
    """
    if config.device == "cpu" or not is_local(master_of(spark)):
        return None
    if amount_of(spark, TASK_AMOUNT) > 0:
        raise never_assigned(master_of(spark))
    try:
        found = visible_gpus()
    except EnvironmentProblem:
        if not config.allow_cpu_fallback:
            raise
        found = ()
    if len(found) < num_ranks and not config.allow_cpu_fallback:
        fewer = f"train.num_ranks={len(found)}, " if found else f"{VARIABLE} if the driver hides some, train.ring.device=cpu, "
        raise EnvironmentProblem(
            f"device is cuda, and this machine has {describe(found)} for {num_ranks} rank(s), each of which needs one of its own; set "
            f"{fewer}or {_OR_CPUS}.")
    return found


def describe(gpus: tuple[str, ...]) -> str:
    """``2 GPUs (0, 1) in CUDA_VISIBLE_DEVICES or nvidia-smi -L``, for messages."""
    names = f" ({', '.join(gpus)})" if gpus else ""
    return f"{len(gpus) or 'no'} GPU{'' if len(gpus) == 1 else 's'}{names} in {VARIABLE} or nvidia-smi -L"


def rank_resources(spark: SparkSession, config: RingConfig) -> TaskResources | None:
    """The resources of the profile of the ring's stage; None if its tasks get what all tasks of the session get.

    Raises:
        EnvironmentProblem: Spark would assign no GPU to ranks that need one.
    """
    if config.device == "cpu" or is_local(master_of(spark)):
        return None
    wanted = TaskResources(cpus=config.threads_per_rank, gpus=1)
    refused = _why_no_profile(spark, config, wanted)
    if refused is None:
        return wanted
    if amount_of(spark, TASK_AMOUNT) > 0 or config.allow_cpu_fallback:
        return None
    raise refused


def amount_of(spark: SparkSession, key: str) -> float:
    """A Spark property that is a number; 0 where it is not set."""
    return float(setting(spark, key) or 0)


def _why_no_profile(spark: SparkSession, config: RingConfig, wanted: TaskResources) -> EnvironmentProblem | None:
    """The error of a session that assigns no GPU by itself either; None if it can use the profile."""
    if amount_of(spark, EXECUTOR_AMOUNT) < 1:
        return EnvironmentProblem(f"device is cuda, but Spark's executors have no GPU; set {EXECUTOR_AMOUNT} and a discovery script, or "
                                  f"{_OR_CPUS}.")
    by_amount = f"set {TASK_AMOUNT}=1, by which tasks of every stage take a GPU"
    if config.launcher == "horovod.spark":
        return EnvironmentProblem("device is cuda, but Spark assigns no GPU to tasks, and launcher horovod.spark cannot ask for any; use "
                                  f"launcher: barrier, or {by_amount}.")
    if has_dynamic_allocation(spark):
        return EnvironmentProblem("device is cuda, but Spark assigns no GPU to tasks, and under spark.dynamicAllocation.enabled it would "
                                  f"start other executors for ranks that ask for one; set that to false, or {by_amount}.")
    try:
        profile_of(spark, wanted)
    except SPARK_ERRORS as error:
        return EnvironmentProblem(f"device is cuda, but Spark cannot give a task a GPU and {wanted.cpus} core(s), as many as "
                                  f"train.ring.threads_per_rank ({reason(error)}); lower that, or {by_amount}.")
    return None
