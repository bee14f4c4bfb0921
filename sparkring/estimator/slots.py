"""The ranks of the fits that run at once in this process, as a ``CrossValidator(parallelism=n)`` starts them: they must fit the slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from sparkring.errors import EnvironmentProblem, NotEnoughSlots
from sparkring.spark_jobs.spark.slots import has_dynamic_allocation, is_local, master_of, slots_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class _Running:
    """Ranks of each fit that runs now, by the master of its session."""

    lock: Lock = field(default_factory=Lock)
    ranks: dict[str, list[int]] = field(default_factory=dict)


_RUNNING = _Running()


def slots_there_are(spark: SparkSession) -> int:
    """The number of ranks if the user names none: all slots.

    Raises:
        EnvironmentProblem: Spark does not say how many there are.
    """
    slots = None if has_dynamic_allocation(spark) else slots_of(spark)
    if not slots:
        raise EnvironmentProblem(f"{master_of(spark)} does not say how many slots it has, as under dynamic allocation and over Spark "
                                 "Connect; set numRanks.")
    return slots


@contextmanager
def ranks_held(spark: SparkSession, num_ranks: int) -> Iterator[None]:
    """Count the ranks of a fit while it runs.

    Raises:
        NotEnoughSlots: alone, or with those of the fits that run already, they are more than Spark has slots; nothing was started.
    """
    master, slots = master_of(spark), None if has_dynamic_allocation(spark) else slots_of(spark)
    with _RUNNING.lock:
        others = _RUNNING.ranks.setdefault(master, [])
        wanted = sum(others) + num_ranks
        if not others and slots is not None and wanted > slots and is_local(master):  # a cluster may grow until the ring starts
            raise NotEnoughSlots(wanted=wanted, slots=slots, where=master, remedy=f"set numRanks to at most {slots}, or start Spark with "
                                                                                  f"master local[{wanted}]")
        if others and slots is not None and wanted > slots:
            raise NotEnoughSlots(wanted=wanted, slots=slots, where=f"{master}, where {len(others) + 1} fits run at once,",
                                 remedy=f"lower the parallelism of the CrossValidator or TrainValidationSplit, or set numRanks to at most "
                                        f"{max(slots // (len(others) + 1), 1)}")
        others.append(num_ranks)
    try:
        yield
    finally:
        with _RUNNING.lock:
            others.remove(num_ranks)
