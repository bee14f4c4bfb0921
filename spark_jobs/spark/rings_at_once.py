"""How many rings fit into one Spark application at once, where a job starts several."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from sparkring.errors import ConfigError, EnvironmentProblem, NotEnoughSlots
from sparkring.spark_jobs.spark.slots import has_dynamic_allocation, master_of, slots_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkring.spark_jobs.spark.task_resources import TaskResources


def rings_at_once(spark: SparkSession, *, num_ranks: int, asked: int | None, key: str, what: str, launcher: str,
                  resources: TaskResources | None = None, gpus: Collection[str] | None = None) -> int:
    """As many rings as are asked for, else as many as there are slots and GPUs for.

    Args:
        spark: The session.
        num_ranks: Ranks of a ring, a slot each.
        asked: The config's number of rings.
        key: The config's key for it.
        what: What the rings are, e.g. ``trials``.
        launcher: ``train.ring.launcher``; ``horovod.spark`` runs one ring at a time.
        resources: Those of each rank's task, if its stage has a profile; None: the session's own.
        gpus: Those that the launcher deals out to all rings, one for each rank. None where it does not; fewer than ranks, or none, where
            ranks may use CPUs instead.
    Raises:
        ConfigError: several are asked for of a launcher that runs one at a time.
        NotEnoughSlots: fewer fit than are asked for, or none does.
        EnvironmentProblem: Spark does not say how many slots it has, and no number is asked for.
    """
    if launcher == "horovod.spark":
        if (asked or 1) > 1:
            raise ConfigError(f"{key}={asked}, but launcher horovod.spark runs one ring at a time; set {key} to 1, or "
                              "train.ring.launcher to barrier.")
        asked = 1
    slots = None if has_dynamic_allocation(spark) else slots_of(spark, resources)
    if slots is None and asked is None:
        raise EnvironmentProblem(f"{master_of(spark)} does not say how many slots it has; set {key}.")
    limits = [slots, max(len(gpus), num_ranks) if gpus else None]
    places = min((limit for limit in limits if limit is not None), default=None)
    if places is None:
        return asked or 1
    fit = places // num_ranks
    if (asked or 1) > fit:
        with_gpus = " with a GPU for each rank" if resources or gpus else ""
        where = f"{master_of(spark)}, for {asked or 1} {what} of {num_ranks} ranks{with_gpus},"
        raise NotEnoughSlots(wanted=(asked or 1) * num_ranks, slots=places, where=where,
                             remedy=f"set {key} to at most {fit}" if fit else f"set train.num_ranks to at most {places}")
    return asked or fit
