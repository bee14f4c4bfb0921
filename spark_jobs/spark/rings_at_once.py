"""How many rings fit into one Spark application at once, where a job starts several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkring.errors import EnvironmentProblem, NotEnoughSlots
from sparkring.spark_jobs.spark.slots import has_dynamic_allocation, master_of, slots_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rings_at_once(spark: SparkSession, *, num_ranks: int, asked: int | None, key: str, what: str) -> int:
    """As many rings as are asked for, else as many as there are slots for.

    Args:
        spark: The session.
        num_ranks: Ranks of a ring, a slot each.
        asked: The config's number of rings.
        key: The config's key for it.
        what: What the rings are, e.g. ``trials``.
    Raises:
        NotEnoughSlots: fewer fit than are asked for, or none does.
        EnvironmentProblem: Spark does not say how many slots it has, and no number is asked for.
    """
    slots = None if has_dynamic_allocation(spark) else slots_of(spark)
    if slots is None:
        if asked is None:
            raise EnvironmentProblem(f"{master_of(spark)} does not say how many slots it has; set {key}.")
        return asked
    fit = slots // num_ranks
    if (asked or 1) > fit:
        where = f"{master_of(spark)}, for {asked or 1} {what} of {num_ranks} ranks,"
        raise NotEnoughSlots(wanted=(asked or 1) * num_ranks, slots=slots, where=where,
                             remedy=f"set {key} to at most {fit}" if fit else f"set train.num_ranks to at most {slots}")
    return asked or fit
