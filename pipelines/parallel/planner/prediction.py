"""Predict one layout: its cut, the bytes of each stage, and the seconds of a step, by playing its real schedule. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from sparkring.conf.schema import TransportName
from sparkring.errors import LayoutRefused
from sparkring.pipelines.parallel.planner.cost_model import Cluster, ModelProfile
from sparkring.pipelines.parallel.planner.enumerate import Candidate
from sparkring.pipelines.parallel.planner.memory import StageMemory
from sparkring.pipelines.parallel.planner.pipeline_costs import PipelineCosts
from sparkring.pipelines.parallel.schedules.simulator import simulate
from sparkring.pipelines.parallel.stages.partition import BlockCost, Bounds, cut_by_time


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A layout with its predicted seconds and bytes."""

    candidate: Candidate
    bounds: Bounds
    """First block of each chunk and, last, the number of blocks."""
    transport: TransportName
    memory: tuple[StageMemory, ...]
    """(stages,) bytes of a rank."""
    seconds: float
    """Seconds of a step; infinite if the layout cannot be used."""
    idle: float = 0.0
    """Share of the passes' time in which a rank is idle."""
    sum_s: float = 0.0
    """Seconds of a step spent waiting for gradients, on the stage that waits longest."""
    refused: str = ""
    """The reason that the layout cannot be used; empty if it can."""

    @property
    def cut(self) -> tuple[int, ...]:
        """Blocks of each chunk, as in the config."""
        return tuple(last - first for first, last in pairwise(self.bounds))


def predict(model: ModelProfile, cluster: Cluster, candidate: Candidate, *, batch_rows: int) -> Prediction:
    """Predict one layout.

    Args:
        model: The model's costs, measured or computed from published figures.
        cluster: Machines and links.
        candidate: The layout.
        batch_rows: Rows of a step over all ranks.
    Returns:
        The prediction; ``refused`` says why the layout cannot be used.
    Raises:
        ConfigError: the schedule does not allow these replicas.
    """
    pipeline = PipelineCosts(model, cluster, candidate, batch_rows=batch_rows)
    bounds = _even_cut(tuple(block.seconds for block in pipeline.block_costs()), pipeline.copies)
    memory = pipeline.memory(bounds)
    refused = _too_large(memory, cluster.memory_bytes)
    if refused and sum(each.total for each in memory) <= len(memory) * cluster.memory_bytes:  # otherwise no other cut fits either
        try:
            bounds = cut_by_time(pipeline.block_costs(), candidate.num_chunks, replicas=pipeline.copies, memory=pipeline.memory_model())
            memory = pipeline.memory(bounds)
            refused = _too_large(memory, cluster.memory_bytes)
        except LayoutRefused:
            pass  # ``refused`` names the stage that is too large
    transport = pipeline.transport(bounds)
    if refused:
        return Prediction(candidate=candidate, bounds=bounds, transport=transport, memory=memory, seconds=math.inf, refused=refused)
    costs = pipeline.costs(bounds, transport)
    timeline = simulate(pipeline.schedule, costs)
    return Prediction(candidate=candidate, bounds=bounds, transport=transport, memory=memory, seconds=timeline.makespan_s,
                  idle=timeline.bubble, sum_s=max(costs.reduce_s))


def _too_large(memory: Sequence[StageMemory], limit: float) -> str:
    """The stage that does not fit, and its largest part; empty if all fit."""
    worst = max(range(len(memory)), key=lambda stage: memory[stage].total)
    if memory[worst].total <= limit:
        return ""
    what, size = memory[worst].largest
    where = f"stage {worst}" if len(memory) > 1 else "a rank"
    return f"does not fit, because {where} takes {_size(memory[worst].total)} ({what} {_size(size)}) of {_size(limit)}"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.3g} MB"


@lru_cache(maxsize=1024)
def _even_cut(seconds: tuple[float, ...], copies: tuple[int, ...]) -> Bounds:
    """The cut by time alone of blocks that take ``seconds``; it is the same for all schedules."""
    return cut_by_time([BlockCost(name="", seconds=each) for each in seconds], len(copies), replicas=copies)
