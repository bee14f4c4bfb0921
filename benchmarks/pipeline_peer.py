"""Throughput of a small GPT in two stages of 1 thread each, beside torch.distributed.pipelining with the same schedules.

    uv run python -m benchmarks.pipeline_peer

A round starts two fresh ranks, in which all four sides (ours and torch's, GPipe and 1F1B) make steps by turns, each with a
model, an optimizer and connections of its own. All sides cut the same model at the same place, start from the same weights, take the
same micro-batches in the same order and divide the loss alike; their losses must agree. A step begins at a barrier and ends when
the slower rank has updated its weights; a side's figure is the median of its steps, a ratio the median over the rounds.

Ours is what a training run does: shared memory between the ranks, gradients collected by the ring. Torch's is what its
documentation shows: Gloo on loopback, ``losses`` taken from the last stage, no outputs returned.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from benchmarks.support.report import print_result
from harness.ranks import run_on_ranks
from sparkring.models.blocks import LOGITS, StageModule
from sparkring.models.inputs import TOKENS
from sparkring.models.text import text_blocks
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.stages.edges import edges_of
from sparkring.pipelines.parallel.stages.executor import Executor
from sparkring.pipelines.parallel.stages.partition import cut_by_count
from sparkring.pipelines.parallel.transports.sidecar import SidecarTransport
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from sparkring.spark_jobs.launch.rank import environment as rank_environment

ROUNDS = 7
WARM_UP, STEPS = 2, 6
"""Of each side in a round."""
VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS = 1000, 64, 256, 6, 4
ROWS, MICRO_BATCHES = 16, 8
STAGES = 2
TORCH_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
SIDES = tuple(f"{who} {schedule}" for schedule in TORCH_SCHEDULES for who in ("sparkring", "torch"))
FIELDS = {"gpipe": "gpipe_ratio_to_torch", "1f1b": "one_f_one_b_ratio_to_torch"}

Step = Callable[[], float]
"""Makes one step; returns what this rank computed of its loss."""


def make_stage(rank: int) -> StageModule:
    """This rank's half of the decoder."""
    blocks = text_blocks(VOCABULARY, LENGTH, width=WIDTH, layers=LAYERS, heads=HEADS, tied=False)
    bounds = cut_by_count(len(blocks), STAGES)
    return StageModule(blocks, first=bounds[rank], last=bounds[rank + 1], seed=0)


def make_batch() -> tuple[Tensor, Tensor]:
    """Tokens (rows, length) and the tokens after them."""
    tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_share(logits_RTV: Tensor, labels_RT: Tensor) -> Tensor:
    """A micro-batch's share of the step's mean loss."""
    return functional.cross_entropy(logits_RTV.flatten(0, 1), labels_RT.flatten(), reduction="sum") / (ROWS * LENGTH)


def make_optimizer(stage: nn.Module) -> torch.optim.Optimizer:
    """The same for all sides."""
    return torch.optim.AdamW(stage.parameters(), fused=True)


class Work:
    """One of our steps: what the executor asks for."""

    def __init__(self, ring: GradientRing, optimizer: torch.optim.Optimizer) -> None:
        self._ring, self._optimizer = ring, optimizer
        self._tokens, self._labels = (tensor.chunk(MICRO_BATCHES) for tensor in make_batch())

    def batch(self, micro_batch: int) -> dict[str, Tensor]:
        """The tokens."""
        return {TOKENS: self._tokens[micro_batch]}

    def loss(self, micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        """Of the next tokens."""
        return loss_share(outputs[LOGITS], self._labels[micro_batch])

    def last_backward(self) -> None:
        """As in training."""
        self._ring.last_pass(0.0)

    def reduce(self) -> None:
        """As in training."""
        self._ring.finish()

    def step(self, _loss: float) -> None:
        """As in training."""
        self._optimizer.step()


def by_sparkring(communicator: Communicator, name: str, stack: ExitStack) -> Step:
    """Our executor, with the sidecar transport; ``stack`` closes it."""
    rank = communicator.context.rank
    schedule, stage = build_schedule(name, (1,) * STAGES, MICRO_BATCHES), make_stage(rank)

    def rank_of(worker: Worker) -> int:
        return worker.stage

    transport = stack.enter_context(SidecarTransport(communicator, edges_of(schedule, rank_of)))
    executor = Executor(schedule, Worker(rank, 0), {rank: stage}, rank_of=rank_of, transport=transport)
    ring = GradientRing(stage.parameters(), communicator, bucket_mb=25.0, group=(rank,))
    stack.callback(ring.close)
    work = Work(ring, make_optimizer(stage))

    def step() -> float:
        ring.begin()
        return executor.run(work)

    return step


class TorchStage(nn.Module):
    """A stage as torch wants it: one tensor in, one out."""

    def __init__(self, stage: StageModule) -> None:
        super().__init__()
        self.stage = stage
        self._calls = [(block.run, [stage.get_submodule(name) for name in block.parts]) for block in stage.own_blocks]

    def forward(self, x: Tensor) -> Tensor:
        """Run the blocks, one after the other."""
        for run, parts in self._calls:
            result = run(parts, x)
            assert isinstance(result, Tensor)
            x = result
        return x


def by_torch(rank: int, name: str) -> Step:
    """Torch's pipeline."""
    module = TorchStage(make_stage(rank))
    stage = PipelineStage(module, rank, STAGES, torch.device("cpu"))
    schedule = TORCH_SCHEDULES[name](stage, MICRO_BATCHES, loss_fn=loss_share, scale_grads=False)  # the loss is divided already
    optimizer = make_optimizer(module)
    tokens, labels = make_batch()

    def step() -> float:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if stage.is_first:
            schedule.step(tokens)
        else:
            schedule.step(target=labels, losses=losses, return_outputs=False)
        optimizer.step()
        return sum(float(loss.detach()) for loss in losses)

    return step


def play(context: RankContext, first: int) -> dict[str, list[tuple[float, float]]]:
    """Make steps on all sides by turns, starting with side ``first``; returns each side's (seconds, loss) by step on this rank."""
    store = f"/dev/shm/sparkring-{context.token}-store"  # noqa: S108 - random name; removed below
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=context.rank, world_size=context.size,
                                   timeout=timedelta(seconds=60))
    order = SIDES[first:] + SIDES[:first]
    with Communicator(context) as communicator, ExitStack() as stack:
        steps: dict[str, Step] = {}
        for side in order:
            who, schedule = side.split()
            steps[side] = by_sparkring(communicator, schedule, stack) if who == "sparkring" else by_torch(context.rank, schedule)
        done: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
        for _ in range(WARM_UP + STEPS):
            for side in order:
                distributed.barrier()
                began = time.perf_counter()
                loss = steps[side]()
                done[side].append((time.perf_counter() - began, loss))
    if context.rank == 0:
        Path(store).unlink()
    distributed.destroy_process_group()
    return done


def round_seconds(ranks: list[dict[str, list[tuple[float, float]]]]) -> dict[str, float]:
    """Median seconds of a step by side; a step ends when the slower rank has. All sides must have lost alike."""
    losses = {side: [loss for _, loss in ranks[-1][side]] for side in SIDES}
    for side in SIDES[1:]:
        apart = max(abs(mine - other) / mine for mine, other in zip(losses[SIDES[0]], losses[side], strict=True))
        assert apart < 1e-3, f"{SIDES[0]} and {side} train apart: {losses[SIDES[0]]} and {losses[side]}"
    return {side: statistics.median(max(seconds for seconds, _ in step)
                                    for step in list(zip(*(rank[side] for rank in ranks), strict=True))[WARM_UP:]) for side in SIDES}


def main() -> None:
    """Play and print."""
    os.environ.update(rank_environment.MEMORY)  # before the first process starts
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rounds = []
    for number in range(ROUNDS):
        rounds.append(round_seconds(run_on_ranks(STAGES, play, number % len(SIDES), cycle_ms=None)))
        print(f"round {number + 1} of {ROUNDS}: " + ", ".join(f"{side} {1e3 * rounds[-1][side]:.1f} ms" for side in SIDES), flush=True)
    table, ratios = [], {}
    for name, field in FIELDS.items():
        ratios[field] = statistics.median(one[f"torch {name}"] / one[f"sparkring {name}"] for one in rounds)
        for who in ("sparkring", "torch"):
            seconds = statistics.median(one[f"{who} {name}"] for one in rounds)
            table.append({"schedule": name, "side": who, "ms a step": f"{1e3 * seconds:.1f}", "tokens/s": f"{ROWS * LENGTH / seconds:.0f}"})
    print_result(table, ratios)


if __name__ == "__main__":
    main()
