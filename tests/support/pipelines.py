"""Staged training on real ranks for tests, beside serial training of the same blocks: ``train_pipelined`` and ``train_serially``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparkring.conf.schema import Recompute, ScheduleName, TransportName
from sparkring.models.batch_norm import finish_steps
from sparkring.models.blocks import BlockList, StageModule, WholeModel
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.memory_sets import open_set_reducer
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Mesh
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Schedule, Worker
from sparkring.pipelines.parallel.stages.edges import edges_of
from sparkring.pipelines.parallel.stages.executor import Executor
from sparkring.pipelines.parallel.stages.partition import cut_by_count
from sparkring.pipelines.parallel.transports.catalogue import open_transport
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing

Values = NDArray[np.float64]
SEED = 7
ROWS = 13
"""Rows of a step: micro-batches hold unequal numbers of them."""
STEPS = 3


@dataclass(frozen=True)
class Case:
    """A staged run."""

    replicas: tuple[int, ...]
    schedule: ScheduleName = "1f1b"
    micro_batches: int = 4
    chunks_per_stage: int = 1
    transport: TransportName = "sidecar"
    recompute: Recompute = "never"
    optimizer: str = "sgd"
    dynamic_shapes: bool = False

    def __str__(self) -> str:
        return (f"{self.schedule} {'+'.join(map(str, self.replicas))} x{self.chunks_per_stage} m{self.micro_batches} {self.transport} "
                f"recompute {self.recompute} {self.optimizer}")

    @property
    def mesh(self) -> Mesh:
        """Who is what."""
        return Mesh(self.replicas)

    def build(self) -> Schedule:
        """Its lists."""
        return build_schedule(self.schedule, self.replicas, self.micro_batches, chunks_per_stage=self.chunks_per_stage)


def make_optimizer(parameters: list[nn.Parameter], name: str) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam; a stage may have no parameters."""
    group = [{"params": parameters}]
    return torch.optim.SGD(group, lr=0.1, momentum=0.9) if name == "sgd" else torch.optim.Adam(group, lr=0.01)


def part(batch: Mapping[str, Tensor], micro_batch: int, micro_batches: int) -> dict[str, Tensor]:
    """The rows of a micro-batch."""
    return {name: tensor[micro_batch::micro_batches] for name, tensor in batch.items()}


class Job:
    """A model, its data and its loss; subclasses are the models of the tests."""

    def blocks(self) -> BlockList:
        """The model, cut up."""
        raise NotImplementedError

    def batch(self, step: int) -> dict[str, Tensor]:
        """Inputs and ``label`` of a step."""
        raise NotImplementedError

    def loss_sum(self, outputs: Mapping[str, Tensor], label: Tensor) -> Tensor:
        """Summed over rows."""
        return nn.functional.mse_loss(outputs["logits"], label, reduction="sum")


def train_serially(job: Job, *, micro_batches: int, optimizer: str) -> tuple[dict[str, Values], list[float]]:
    """Train the whole model in this process, micro-batch by micro-batch; returns its state and the losses."""
    model = WholeModel(job.blocks(), seed=SEED).double()
    stepper = make_optimizer(list(model.parameters()), optimizer)
    losses = []
    for step in range(STEPS):
        batch = job.batch(step)
        stepper.zero_grad()
        total = 0.0
        for micro_batch in range(micro_batches):
            rows = part(batch, micro_batch, micro_batches)
            share = job.loss_sum(model.run_blocks(rows), rows["label"]) / ROWS
            share.backward()
            total += float(share.detach())
        finish_steps([model], lambda _: None)
        stepper.step()
        losses.append(total)
    return {name: tensor.detach().numpy().copy() for name, tensor in model.state_dict().items()}, losses


class _Work:
    def __init__(self, job: Job, case: Case, step: int, ring: GradientRing, optimizer: torch.optim.Optimizer,
                 finish: Callable[[], None]) -> None:
        self._job, self._case, self._batch, self._ring, self._optimizer = job, case, job.batch(step), ring, optimizer
        self._finish = finish

    def batch(self, micro_batch: int) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in part(self._batch, micro_batch, self._case.micro_batches).items() if name != "label"}

    def rows(self, micro_batch: int) -> int:
        return len(part(self._batch, micro_batch, self._case.micro_batches)["label"])

    def loss(self, micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        return self._job.loss_sum(outputs, part(self._batch, micro_batch, self._case.micro_batches)["label"]) / ROWS

    def last_backward(self) -> None:
        self._ring.last_pass(0.0)

    def reduce(self) -> None:
        self._ring.finish()
        self._finish()

    def step(self, _loss: float) -> None:
        self._optimizer.step()


def train_pipelined(context: RankContext, job: Job, cases: list[Case]) -> list[tuple[dict[str, Values], list[float], int]]:
    """Train the same in stages on this rank, case after case; returns of each its chunks' state, the losses and its stage."""
    sets = {ranks for case in cases for ranks in case.mesh.process_sets(context.hosts, wraps=True)}
    results = []
    with Communicator(context, extra_sets=sets, messages_by_horovod=True) as communicator:
        for number, case in enumerate(cases):
            results.append(_train_case(communicator, job, case))
            communicator.barrier(f"case.{number}")
    return results


def _train_case(communicator: Communicator, job: Job, case: Case) -> tuple[dict[str, Values], list[float], int]:
    mesh, schedule, blocks = case.mesh, case.build(), job.blocks()
    place = mesh.coordinate(communicator.context.rank)
    bounds = list(pairwise(cut_by_count(len(blocks), schedule.num_chunks)))
    chunks = {chunk: StageModule(blocks, first=bounds[chunk][0], last=bounds[chunk][1], seed=SEED).double()
              for chunk in range(place.stage, schedule.num_chunks, schedule.num_stages)}
    parameters = [parameter for chunk in chunks.values() for parameter in chunk.parameters()]

    def rank_of(worker: Worker) -> int:
        return mesh.rank(worker.stage, worker.replica, place.shard)

    edges = edges_of(schedule, rank_of)
    ring = GradientRing(parameters, communicator, bucket_mb=0.001, group=mesh.replica_set(place.stage, place.shard))
    optimizer = make_optimizer(parameters, case.optimizer)
    replicas = open_set_reducer(communicator, mesh.replica_set(place.stage, place.shard))
    losses = []

    def finish() -> None:
        finish_steps(chunks.values(), lambda sums: replicas.sum_(sums, "batch statistics"))

    with open_transport(case.transport, communicator, edges, dynamic_shapes=case.dynamic_shapes) as transport:
        executor = Executor(schedule, Worker(place.stage, place.replica), chunks, rank_of=rank_of,
                            transport=transport if schedule.has_transfers else None, recompute=case.recompute)
        for step in range(STEPS):
            ring.begin()
            work = _Work(job, case, step, ring, optimizer, finish)
            share = executor.run(work, rows=work.rows)
            losses.append(float(communicator.sum(torch.tensor([share], dtype=torch.float64), name=f"loss.{case}.{step}")[0]))
    ring.close()
    state = {name: tensor.detach().numpy().copy() for chunk in chunks.values() for name, tensor in chunk.state_dict().items()}
    return state, losses, place.stage


def furthest(got: Mapping[str, Values], wanted: Mapping[str, Values]) -> float:
    """The largest relative difference of any parameter."""
    return max((float(np.linalg.norm(got[name] - wanted[name])) / max(float(np.linalg.norm(wanted[name])), 1e-12) for name in got),
               default=0.0)
