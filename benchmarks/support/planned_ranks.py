"""What the planner's benchmark runs on ranks: the planner's own measurements of a network, and layouts, step by step.

A layout is run by the executor, the gradient ring and the optimizer of training. A step ends when all ranks know its loss, as in
training; its seconds are those from one such end to the next. Rows are dealt to micro-batches from lanes, as in training: where they do
not divide, others have a row more in each step, and a round of steps is what is measured. One more round comes before; in it
everything is counted that a rank holds.
"""

from __future__ import annotations

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from benchmarks.support.late_wires import Link
from benchmarks.support.sleeping_models import network, rows_of, wake_on_time
from sparkring.conf.schema import OptimizerConfig
from sparkring.models.blocks import StageModule, WholeModel, X
from sparkring.pipelines.data.order.row_order import MIN_LANES, EpochOrder
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.memory_sets import open_set_reducer
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Mesh
from sparkring.pipelines.parallel.planner.enumerate import Candidate
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.stages.edges import edges_of
from sparkring.pipelines.parallel.stages.executor import Executor
from sparkring.pipelines.parallel.stages.partition import Bounds
from sparkring.pipelines.training.job.optimizer import make_optimizer
from sparkring.pipelines.training.profiling.block_times import BlockSeconds, TimedModel, time_blocks
from sparkring.pipelines.training.profiling.executor_times import time_end, time_executor
from sparkring.pipelines.training.profiling.link_times import LinkSeconds, time_links
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing

ROWS = 12
"""Of a step, over all ranks."""
ROW_S = 0.13 / ROWS
"""Seconds in which one rank takes a row through all passes."""
BUCKET_MB = 25.0
OPTIMIZER = OptimizerConfig()
STEADY, MOST_ROUNDS = 0.02, 5
"""Rounds are measured until the last two differ by less than this share, or there are so many."""


class Measured(TypedDict):
    """What a rank measured for the planner."""

    blocks: dict[str, list[BlockSeconds]]
    """By network."""
    links: list[LinkSeconds]
    executor: list[float]
    end_s: float


class Asked(NamedTuple):
    """A layout to run."""

    candidate: Candidate
    bounds: Bounds


class Played(NamedTuple):
    """What a rank saw of a layout."""

    stage: int
    seconds: float
    """Of a step, the same on all ranks."""
    held_bytes: int
    """Parameters, gradients, the optimizer's state, and activations at most."""


def measure(context: RankContext, link: Link, networks: Sequence[str], row_counts: tuple[int, int]) -> Measured:
    """Measure what the planner asks for, on all ranks at once."""
    wake_on_time()
    with Communicator(context) as communicator:
        communicator.barrier("measure")
        subjects = {name: TimedModel(blocks=network(name, row_s=ROW_S), inputs=partial(rows_of, name), row_counts=row_counts,
                                  optimizer=OPTIMIZER, dtype=torch.float32) for name in networks}
        blocks = {name: time_blocks(subject, torch.Tensor.sum) for name, subject in subjects.items()}
        return Measured(blocks=blocks, executor=list(time_executor()), links=time_links(communicator, link.wires()),
                        end_s=time_end(communicator))


def play(context: RankContext, name: str, link: Link, layouts: Sequence[Asked]) -> list[Played]:
    """Run layouts on all ranks of this ring, one after the other."""
    wake_on_time()
    with Communicator(context) as communicator:
        everyone = _Everyone(communicator)
        found = []
        for asked in layouts:
            with ExitStack() as stack:
                rank = _PlainRank(communicator, name, link, stack) if asked.candidate.is_plain else _StagedRank(
                    communicator, name, link, asked, stack)
                found.append(_measured(rank, everyone))
                communicator.barrier("layout")
        return found


def dealt_rows(micro_batches: int) -> list[list[int]]:
    """(steps, micro-batches) rows, until they come again as in the first step."""
    steps = math.lcm(ROWS, MIN_LANES) // ROWS
    order = EpochOrder(np.array([steps * ROWS]), seed=0, epoch=0, lanes=MIN_LANES)
    lanes = [order.owned_lanes(part, micro_batches) for part in range(micro_batches)]
    dealt = [[order.rows_of(each, step, ROWS) for each in lanes] for step in range(steps)]
    return dealt if any(rows != dealt[0] for rows in dealt) else dealt[:1]


class _Everyone:
    """All ranks, who end a step together."""

    def __init__(self, communicator: Communicator) -> None:
        self._size = communicator.context.size
        self._reducer = open_set_reducer(communicator, tuple(range(self._size)))

    def mean(self, value: float) -> float:
        """Over the ranks."""
        number = torch.tensor([value], dtype=torch.float64)
        self._reducer.sum_(number, "end")
        return float(number[0]) / self._size


class _Rank(ABC):
    """One rank of a layout."""

    round_steps = 1
    """Steps after which the micro-batches have as many rows as at first."""

    def __init__(self, communicator: Communicator, link: Link, modules: Iterable[nn.Module], *, stage: int, group: tuple[int, ...],
                 stack: ExitStack) -> None:
        self.stage = stage
        self.parameters = [parameter for module in modules for parameter in module.parameters()]
        self.ring = GradientRing(self.parameters, communicator, bucket_mb=BUCKET_MB, group=group,
                                 open_gradient_reducer=link.open_gradient_reducer)
        stack.callback(self.ring.close)
        self.optimizer = make_optimizer(self.parameters, OPTIMIZER)

    @abstractmethod
    def step(self) -> float:
        """Do one step; returns this rank's share of its loss."""

    def kept_bytes(self) -> int:
        """What stays from step to step."""
        states = [value for state in self.optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return sum(tensor.nbytes for tensor in (*self.parameters, *gradients, *states))


class _PlainRank(_Rank):
    """The whole model and a rank's share of the rows at once."""

    def __init__(self, communicator: Communicator, name: str, link: Link, stack: ExitStack) -> None:
        rank, size = communicator.context.rank, communicator.context.size
        self._model = WholeModel(network(name, row_s=ROW_S), seed=0)
        self._rows = rows_of(name, len(range(rank, ROWS, size)))[X]
        super().__init__(communicator, link, [self._model], stage=0, group=tuple(range(size)), stack=stack)

    def step(self) -> float:
        """As ``train_step`` does it."""
        share = self._model(self._rows).sum() / ROWS
        self.ring.begin(share)
        share.backward()
        loss = self.ring.finish()
        self.optimizer.step()
        return loss


class _StagedRank(_Rank):
    """Some chunks, by the executor; also the work of its steps."""

    def __init__(self, communicator: Communicator, name: str, link: Link, asked: Asked, stack: ExitStack) -> None:
        candidate, mesh = asked.candidate, Mesh(asked.candidate.replicas)
        coordinate = mesh.coordinate(communicator.context.rank)
        schedule = build_schedule(candidate.schedule, mesh.replicas, candidate.micro_batches, chunks_per_stage=candidate.chunks_per_stage)
        blocks = network(name, row_s=ROW_S)
        own = list(enumerate(pairwise(asked.bounds)))[coordinate.stage::mesh.num_stages]
        chunks = {number: StageModule(blocks, first=first, last=last, seed=0) for number, (first, last) in own}

        def rank_of(worker: Worker) -> int:
            return mesh.rank(*worker)

        super().__init__(communicator, link, chunks.values(), stage=coordinate.stage, group=mesh.replica_set(coordinate.stage, 0),
                         stack=stack)
        transport = link.open_transport(communicator, edges_of(schedule, rank_of), dynamic_shapes=True)
        stack.callback(transport.close)
        self._executor = Executor(schedule, Worker(coordinate.stage, coordinate.replica), chunks, rank_of=rank_of, transport=transport)
        self._dealt = [[rows_of(name, rows) for rows in step] for step in dealt_rows(candidate.micro_batches)]
        self._step, self.round_steps = -1, len(self._dealt)

    def step(self) -> float:
        """As ``PipelinedStrategy`` does it."""
        self._step = (self._step + 1) % self.round_steps
        self.ring.begin()
        return self._executor.run(_Work(self))

    def rows(self, micro_batch: int) -> dict[str, Tensor]:
        """The first chunk's inputs."""
        return self._dealt[self._step][micro_batch]


@dataclass
class _Work:
    """What a step is about, for the executor."""

    rank: _StagedRank

    def batch(self, micro_batch: int) -> dict[str, Tensor]:
        return self.rank.rows(micro_batch)

    def loss(self, _micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs[X].sum() / ROWS

    def last_backward(self) -> None:
        self.rank.ring.last_pass(0.0)

    def reduce(self) -> None:
        self.rank.ring.finish()

    def step(self, _loss: float) -> None:
        self.rank.optimizer.step()


def _measured(rank: _Rank, everyone: _Everyone) -> Played:
    def play_round() -> None:
        for _ in range(rank.round_steps):
            everyone.mean(rank.step())

    activations = _Activations(rank.parameters)
    with activations.watching():
        play_round()
    held = rank.kept_bytes() + activations.most_bytes
    seconds: list[float] = []
    while len(seconds) < MOST_ROUNDS and not _steady(seconds):
        began = time.perf_counter()
        play_round()
        seconds.append(everyone.mean(time.perf_counter() - began) / rank.round_steps)
    return Played(rank.stage, statistics.median(seconds), held)


def _steady(seconds: Sequence[float]) -> bool:
    return len(seconds) > 1 and abs(seconds[-1] - seconds[-2]) < STEADY * seconds[-1]


class _Activations:
    """What autograd keeps, each storage once, from its first use until nothing of the graph needs it."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self._uses: Counter[int] = Counter()
        self._bytes = self.most_bytes = 0

    def watching(self) -> AbstractContextManager[object]:
        """Count what is saved inside."""
        return saved_tensors_hooks(lambda tensor: _Kept(tensor, self), lambda kept: kept.tensor)

    def take(self, tensor: Tensor) -> None:
        """One more use."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._parameters:
            self._uses[storage.data_ptr()] += 1
            self._bytes += storage.nbytes() if self._uses[storage.data_ptr()] == 1 else 0
            self.most_bytes = max(self.most_bytes, self._bytes)

    def drop(self, tensor: Tensor) -> None:
        """One use less."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._uses:
            self._uses[storage.data_ptr()] -= 1
            if not self._uses[storage.data_ptr()]:
                del self._uses[storage.data_ptr()]
                self._bytes -= storage.nbytes()


class _Kept:
    """A tensor in a graph."""

    def __init__(self, tensor: Tensor, counted: _Activations) -> None:
        self.tensor, self._counted = tensor, counted
        counted.take(tensor)

    def __del__(self) -> None:
        self._counted.drop(self.tensor)


