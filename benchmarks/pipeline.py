"""The share of a step that stages spend idle, beside what theory says, for every schedule.

    uv run python -m benchmarks.pipeline

Real ranks run real lists, with the real executor and transport; only the layers are not real: their passes sleep, so that
four stages on two cores do not take each other's time. A forward pass of a chunk sleeps FORWARD_S, the gradients of its input
and of its weights as long again each. Idle is a stage's time outside of its passes, from the start of the first pass of a step until
the end of the last one of any stage: waiting, messages and Python. Theory is the closed form for equal passes and messages that
take no time (the simulator is asked too, and must say the same). A case's figure is the median over STEPS steps. ``awake`` counts
as idle all but the sleep itself: also what autograd and the executor do within a pass, and waking up late.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from benchmarks.support.report import print_result
from harness.closed_forms import pipeline_bubble, zero_bubble_makespan
from harness.ranks import run_on_ranks
from sparkring.models.blocks import Block, BlockList, StageModule, X
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.catalogue import SCHEDULE_NAMES, build_schedule
from sparkring.pipelines.parallel.schedules.schedule import COMPUTE, Action, Schedule, Worker
from sparkring.pipelines.parallel.schedules.simulator import TimedAction, Timeline, simulate
from sparkring.pipelines.parallel.stages.edges import edges_of
from sparkring.pipelines.parallel.stages.executor import Executor
from sparkring.pipelines.parallel.transports.sidecar import SidecarTransport
from sparkring.spark_jobs.launch.rank import environment as rank_environment

FORWARD_S = 0.15
"""Sleep of a forward pass, of the gradient of the input, and of that of the weights. Between passes the executor and a message take 0.2 to
0.8 ms of a core that has just slept, however long a pass is: a third of all idle time where passes take 40 ms and bubbles are 2 %."""
STAGES = (2, 4)
MICRO_BATCHES = (4, 8, 16)
STEPS = 2
"""Measured ones; one more comes before them."""
ROWS, WIDTH = 8, 256
"""Of what crosses a border."""
CYCLE_MS = 20
"""Horovod's, which carries the barrier between steps and nothing else."""
DEADLINE_S = 300.0
"""Of a schedule's cases; interleaved over four stages sleeps for 88 s."""

Record = tuple[Action, float, float]
"""What was done, from when to when."""


@dataclass(frozen=True)
class Case:
    """One schedule on a number of stages."""

    schedule: str
    stages: int
    micro_batches: int

    def __str__(self) -> str:
        return f"{self.schedule}, {self.stages} stages, {self.micro_batches} micro-batches"

    @property
    def chunks_per_stage(self) -> int:
        """Two where the schedule is about chunks."""
        return 2 if self.schedule == "interleaved" else 1

    def build(self) -> Schedule:
        """Its lists."""
        return build_schedule(self.schedule, (1,) * self.stages, self.micro_batches, chunks_per_stage=self.chunks_per_stage)

    @property
    def costs(self) -> Costs:
        """Of its chunks."""
        return Costs.equal(self.stages * self.chunks_per_stage, forward_s=FORWARD_S, backward_s=2 * FORWARD_S)

    @property
    def work_s(self) -> float:
        """Seconds of a step that each stage sleeps."""
        return 3 * FORWARD_S * self.micro_batches * self.chunks_per_stage

    @property
    def idle_in_theory(self) -> float:
        """Share of a step that a stage must wait."""
        if self.schedule == "zero_bubble":
            return 1 - self.work_s / zero_bubble_makespan(self.stages, self.micro_batches, forward_s=FORWARD_S, input_s=FORWARD_S,
                                                          weight_s=FORWARD_S)
        return pipeline_bubble(self.stages, self.micro_batches, chunks_per_stage=self.chunks_per_stage)


class _Sleep(Function):
    """Hands a tensor on after a while, and its gradient after another."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, forward_s: float, backward_s: float) -> Tensor:
        sleep(forward_s)
        ctx.backward_s = backward_s
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        sleep(ctx.backward_s)
        return grads[0], None, None


class SleepingLayer(nn.Module):
    """Sleeps in its forward pass, and apart for the gradients of its input and of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x_RW: Tensor) -> Tensor:
        """Return a tensor of the input's shape."""
        bias_W = _Sleep.apply(self.bias, 0.0, FORWARD_S)
        result: Tensor = _Sleep.apply(x_RW, FORWARD_S, FORWARD_S) + bias_W
        return result


class Work:
    """A step of nothing."""

    def batch(self, _micro_batch: int) -> dict[str, Tensor]:
        """Rows that want a gradient, so that the first stage has as much to do as the others."""
        return {X: torch.zeros(ROWS, WIDTH, requires_grad=True)}

    def loss(self, _micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        """Any scalar."""
        return outputs[X].sum()

    def last_backward(self) -> None:
        """Nothing to sum."""

    def reduce(self) -> None:
        """Nothing to sum."""

    def step(self, _loss: float) -> None:
        """Nothing to update."""


def sleep(seconds: float) -> None:
    """Sleep to the microsecond: the system wakes a sleeper 0.1 ms late, so the last of it is spent awake."""
    until = time.perf_counter() + seconds
    time.sleep(max(0.0, seconds - 5e-4))
    while time.perf_counter() < until:
        pass


def play(context: RankContext, cases: list[Case]) -> list[list[list[Record]]]:
    """Run all cases on this rank, which is the stage of its number; returns what it computed and when, by case and step."""
    with Communicator(context) as communicator:
        return [_play_case(communicator, case) for case in cases]


def _play_case(communicator: Communicator, case: Case) -> list[list[Record]]:
    schedule, stage = case.build(), communicator.context.rank
    names = [f"layer{chunk}" for chunk in range(schedule.num_chunks)]
    blocks = BlockList(tuple(Block(name, {name: SleepingLayer}) for name in names), inputs=(X,), outputs=(X,))
    chunks = {chunk: StageModule(blocks, first=chunk, last=chunk + 1, seed=0) for chunk in range(stage, len(names), case.stages)}

    def rank_of(worker: Worker) -> int:
        return worker.stage

    steps = []
    with SidecarTransport(communicator, edges_of(schedule, rank_of)) as transport:
        executor = Executor(schedule, Worker(stage, 0), chunks, rank_of=rank_of, transport=transport)
        for step in range(1 + STEPS):
            communicator.barrier(f"{case}, step {step}")
            executor.run(Work())
            steps.append([record for record in executor.records if record[0].kind in COMPUTE])
    return steps[1:]


def idle_share(case: Case, ranks: Sequence[list[Record]]) -> float:
    """Share of one step that its stages spent outside of their passes.

    Args:
        case: What they ran.
        ranks: What each of them computed and when, on one clock.
    """
    start_s = min(began for records in ranks for _, began, _ in records)
    entries = {Worker(stage, 0): tuple(TimedAction(action, began - start_s, ended - start_s) for action, began, ended in records)
               for stage, records in enumerate(ranks)}
    return Timeline(case.build(), case.costs, entries).bubble


def awake_share(case: Case, ranks: Sequence[list[Record]]) -> float:
    """Share of one step that its stages did not sleep; arguments as above."""
    begins_s = min(began for records in ranks for _, began, _ in records)
    ends_s = max(ended for records in ranks for _, _, ended in records)
    return 1 - case.work_s / (ends_s - begins_s)


@dataclass(frozen=True)
class Figures:
    """What a case came to."""

    theory: float
    idle: float
    awake: float

    @classmethod
    def of(cls, case: Case, steps: Sequence[Sequence[list[Record]]]) -> Figures:
        """Medians over its steps."""
        theory, simulated = case.idle_in_theory, simulate(case.build(), case.costs).bubble
        assert abs(simulated - theory) < 1e-9, f"{case}: the simulator says {simulated}, the closed form {theory}"
        return cls(theory, statistics.median(idle_share(case, step) for step in steps),
                   statistics.median(awake_share(case, step) for step in steps))

    @property
    def ratio(self) -> float:
        """Idle over theory."""
        return self.idle / self.theory


def main() -> None:
    """Play, compare and print."""
    os.environ.update(rank_environment.MEMORY)  # before the first process starts
    table: list[dict[str, object]] = []
    worst: dict[str, float] = dict.fromkeys(SCHEDULE_NAMES, 0.0)
    worst_awake = 0.0
    for stages in STAGES:
        for name in SCHEDULE_NAMES:
            cases = [Case(name, stages, micro_batches) for micro_batches in MICRO_BATCHES]
            everyone = run_on_ranks(stages, play, cases, cycle_ms=CYCLE_MS, deadline_s=DEADLINE_S)
            for case, *ranks in zip(cases, *everyone, strict=True):
                figures = Figures.of(case, list(zip(*ranks, strict=True)))
                worst[name], worst_awake = max(worst[name], figures.ratio), max(worst_awake, figures.awake / figures.theory)
                table.append({"schedule": name, "stages": stages, "micro-batches": case.micro_batches,
                              "theory %": f"{100 * figures.theory:.2f}", "idle %": f"{100 * figures.idle:.2f}",
                              "ratio": f"{figures.ratio:.3f}", "awake %": f"{100 * figures.awake:.2f}"})
                print(f"{case}: {100 * figures.idle:.2f} % idle, {100 * figures.theory:.2f} % in theory", flush=True)
    print_result(table, {"bubble_over_theory": worst, "worst_bubble_over_theory": max(worst.values()),
                         "worst_awake_over_theory": worst_awake, "sleep_ms": 1e3 * FORWARD_S})


if __name__ == "__main__":
    main()
