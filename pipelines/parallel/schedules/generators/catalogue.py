"""All generators behind one call, by the names in a config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from sparkring.conf.schema import ScheduleName
from sparkring.errors import ConfigError, nearest
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.gpipe import gpipe
from sparkring.pipelines.parallel.schedules.generators.interleaved import interleaved
from sparkring.pipelines.parallel.schedules.generators.one_f_one_b import one_f_one_b
from sparkring.pipelines.parallel.schedules.generators.zero_bubble import zero_bubble
from sparkring.pipelines.parallel.schedules.schedule import Schedule
from sparkring.pipelines.parallel.schedules.transfers import with_transfers

SCHEDULE_NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)


def build_schedule(name: str, replicas: Sequence[int], micro_batches: int, *, chunks_per_stage: int = 1,
                   costs: Costs | None = None) -> Schedule:
    """The complete lists of schedule ``name``, with transfers.

    Args:
        name: One of ``SCHEDULE_NAMES``.
        replicas: Replicas of each stage.
        micro_batches: Micro-batches of the step, over all replicas.
        chunks_per_stage: More than 1 only for ``interleaved``.
        costs: Costs to which the lists are fitted; the same on every rank of a run.
    Raises:
        ConfigError: the name is unknown, or the schedule does not allow this shape.
    """
    if name != "interleaved" and chunks_per_stage != 1:
        raise ConfigError(f"schedule {name} with {chunks_per_stage} chunks per stage; only interleaved has several. "
                          "Use interleaved, or 1 chunk per stage.")
    match name:
        case "gpipe":
            lists = gpipe(replicas, micro_batches)
        case "1f1b":
            lists = one_f_one_b(replicas, micro_batches, costs=costs)
        case "interleaved":
            lists = interleaved(replicas, micro_batches, chunks_per_stage=chunks_per_stage)
        case "zero_bubble":
            lists = zero_bubble(replicas, micro_batches, costs=costs)
        case _:
            raise ConfigError(f"no schedule is called {name!r}{nearest(name, SCHEDULE_NAMES)}; take one of {', '.join(SCHEDULE_NAMES)}.")
    return with_transfers(lists)
