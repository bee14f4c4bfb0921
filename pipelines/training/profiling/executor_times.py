"""The time of a step beside its blocks' passes: the executor's own seconds per pass, and the end of a step on all ranks.

    executor    passes of a nearly empty chunk by the executor, minus bare passes of the same chunk
    end         the sum of one number over all ranks, by which each learns the step's loss
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sparkring.conf.schema import ScheduleName
from sparkring.models.blocks import Block, BlockList, StageModule, X
from sparkring.pipelines.parallel.clock import clock_of
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.memory_sets import open_set_reducer
from sparkring.pipelines.parallel.planner.cost_model import PassSeconds
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Kind, Worker
from sparkring.pipelines.parallel.stages.executor import CPU, Executor
from sparkring.pipelines.training.profiling.block_times import REPETITIONS, WARM_UP, BlockTimer, after_warm_up

MICRO_BATCHES = 8
"""Micro-batches of a measured step."""


class EmptyStep:
    """Callbacks of a step whose work takes no time."""

    def __init__(self, device: torch.device) -> None:
        self._rows = {X: torch.ones(1, 1, device=device)}

    def batch(self, _micro_batch: int) -> dict[str, Tensor]:
        """Return one number."""
        return self._rows

    def loss(self, _micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return any scalar."""
        return outputs[X].sum()

    def last_backward(self) -> None:
        """Sum nothing."""

    def reduce(self) -> None:
        """Sum nothing."""

    def step(self, _loss: float) -> None:
        """Update nothing."""


def time_executor(device: torch.device = CPU) -> PassSeconds:
    """The executor's own seconds per pass of each kind on a device: medians, at least 0."""
    blocks = BlockList((Block("nothing", {"nothing": lambda: nn.Linear(1, 1)}),), inputs=(X,), outputs=(X,))
    by_executor = _seconds_of(blocks, "1f1b", device) | _seconds_of(blocks, "zero_bubble", device, kinds=(Kind.I, Kind.W))
    bench = BlockTimer(StageModule(blocks, seed=0).to(device), torch.Tensor.sum, clock_of(device))
    rows = {X: torch.ones(1, 1, device=device)}
    bare = (*after_warm_up(bench.whole(rows)), *after_warm_up(bench.halves(rows)))
    return PassSeconds(*(max(0.0, statistics.median(by_executor[kind]) - statistics.median(seconds))
                         for kind, seconds in zip((Kind.F, Kind.B, Kind.I, Kind.W), bare, strict=True)))


def _seconds_of(blocks: BlockList, schedule: ScheduleName, device: torch.device, *,
                kinds: Sequence[Kind] = (Kind.F, Kind.B)) -> dict[Kind, list[float]]:
    """Seconds of passes by the executor, by kind."""
    seconds: dict[Kind, list[float]] = {kind: [] for kind in kinds}
    executor = Executor(build_schedule(schedule, (1,), MICRO_BATCHES), Worker(0, 0), {0: StageModule(blocks, seed=0).to(device)},
                        rank_of=lambda _: 0, device=device)
    for repetition in range(WARM_UP + REPETITIONS):
        executor.run(EmptyStep(device))
        for action, began, ended in executor.records if repetition >= WARM_UP else ():
            if action.kind in seconds:
                seconds[action.kind].append(ended - began)
    return seconds


def time_end(communicator: Communicator) -> float:
    """Seconds until all ranks have the sum of one number; every rank of the ring calls this."""
    everyone = open_set_reducer(communicator, tuple(range(communicator.context.size)))
    number, seconds = torch.zeros(1, dtype=torch.float64), []
    for repetition in range(WARM_UP + REPETITIONS):
        began = time.perf_counter()
        everyone.sum_(number, "end")
        if repetition >= WARM_UP:
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
