"""Faults in stages on real ranks, for tests: drawn at random, and suffered one after the other by the ranks of one ring.

    kill           the rank's process ends, by SIGKILL: the last fault of its ring
    raise          a bug in a stage: its rank raises, and lets go of its transport
    sleep          the rank does nothing more until all others have given up on it
    wrong shape    the rank's next message has a row less than those before

Each rank notes what it met with in a file of its own, since a rank that is killed returns nothing.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sparkring.conf.schema import ScheduleName
from sparkring.errors import PeerSilent, PipelineShapeError, RingError
from sparkring.models.blocks import StageModule
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Mesh
from sparkring.pipelines.parallel.schedules.generators.catalogue import SCHEDULE_NAMES, build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Schedule, Worker
from sparkring.pipelines.parallel.stages.callbacks import StepCallbacks
from sparkring.pipelines.parallel.stages.edges import edges_of
from sparkring.pipelines.parallel.stages.executor import Executor
from sparkring.pipelines.parallel.stages.partition import cut_by_count
from sparkring.pipelines.parallel.transports.linked import LinkedTransport
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from tests.support.pipeline_jobs import SkipJob
from tests.support.transports import transport as transport_of

FaultKind = Literal["kill", "raise", "sleep", "wrong shape", "none"]
KINDS: tuple[FaultKind, ...] = ("kill", "raise", "sleep", "wrong shape")
SHAPES = ((1, 1), (1, 1), (1, 1, 1), (1, 1, 1), (2, 1), (1, 2))
"""Replicas of the stages."""
STEPS = 4
"""A fault comes in one of the first two; nobody ends the one after the fault, so nobody the last."""
MICRO_BATCHES, ROWS = 6, 12
DEADLINE_S = 3.0
"""Of all but the rank that fails, from the step of the fault on; before, they may be slow."""
BUG = "a bug in a stage"


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: FaultKind
    replicas: tuple[int, ...]
    schedule_name: ScheduleName
    way: str
    """How messages travel."""
    worker: Worker
    """Who fails."""
    step: int
    moment: int
    """The action of the worker's list before which it happens."""

    def __str__(self) -> str:
        action = self.schedule.text(self.schedule.actions[self.worker][self.moment])
        return (f"{self.kind} in {self.worker} before {action} of step {self.step}, {self.schedule_name} over {list(self.replicas)} "
                f"by {self.way}")

    @property
    def mesh(self) -> Mesh:
        """Who is what."""
        return Mesh(self.replicas)

    @property
    def schedule(self) -> Schedule:
        """Its lists."""
        chunks = 2 if self.schedule_name == "interleaved" else 1
        return build_schedule(self.schedule_name, self.replicas, MICRO_BATCHES, chunks_per_stage=chunks)

    @property
    def rank(self) -> int:
        """Of who fails."""
        return self.mesh.rank(self.worker.stage, self.worker.replica, 0)


def draw_faults(count: int, *, way: str, seed: int) -> list[Fault]:
    """Faults of all kinds in turn while messages travel by ``way``; all else about them is random, whichever other ways there are."""
    generator = random.Random(f"{seed} {way}")
    return [_draw(generator, KINDS[number % len(KINDS)], way) for number in range(count)]


def _draw(generator: random.Random, kind: FaultKind, way: str) -> Fault:
    replicas = generator.choice(SHAPES)
    name = generator.choice([name for name in SCHEDULE_NAMES if name != "interleaved" or len(set(replicas)) == 1])
    fault = Fault(kind, replicas, name, way, Worker(0, 0), step=generator.randrange(2), moment=0)
    worker = generator.choice(fault.schedule.workers)
    actions = fault.schedule.actions[worker]
    if kind == "wrong shape":  # of a message that is not the first one on its edge
        sends = [place for place, action in enumerate(actions) if action.kind in (Kind.SEND_F, Kind.SEND_B)]
        return replace(fault, worker=worker, step=1, moment=generator.choice(sends))
    return replace(fault, worker=worker, moment=generator.randrange(len(actions)))


def launches(faults: Sequence[Fault]) -> list[list[Fault]]:
    """The faults by ring: those that ranks survive, then the kill that ends it."""
    rings = []
    for size in sorted({fault.mesh.size for fault in faults}):
        own = [fault for fault in faults if fault.mesh.size == size]
        kills, others = ([fault for fault in own if (fault.kind == "kill") is killed] for killed in (True, False))
        rings += [[*others[number::len(kills)], kill] for number, kill in enumerate(kills)]
    return rings


def suffer(context: RankContext, faults: Sequence[Fault], folder: str) -> None:
    """Train in stages through each fault on this rank, then without one, and through the kill at last."""
    sets = {ranks for fault in faults for ranks in fault.mesh.process_sets(context.hosts, wraps=True)}
    communicator = Communicator(context, extra_sets=sets, messages_by_horovod=True)
    *survived, kill = faults
    for number, fault in enumerate([*survived, replace(kill, kind="none"), kill]):
        meeting = _Meeting(communicator, f"fault {number}")
        told = _train(communicator, fault, meeting) | {"token": context.token}
        with Path(folder, f"rank-{context.rank}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")
        if fault.kind != "kill":
            meeting.come()


class _Meeting:
    """Where all ranks come once after a fault."""

    def __init__(self, communicator: Communicator, name: str) -> None:
        self._communicator, self._name, self._come = communicator, name, False

    def come(self) -> None:
        if not self._come:
            self._come = True
            self._communicator.barrier(self._name)


def _train(communicator: Communicator, fault: Fault, meeting: _Meeting) -> dict[str, Any]:
    """Train STEPS steps; what this rank met with, as plain values."""
    losses, context = [], communicator.context
    try:
        with ExitStack() as stack:
            executor, work = _open(communicator, fault, meeting, stack)
            stack.callback(setattr, communicator, "context", context)
            communicator.barrier("opened")  # from here on the ranks wait for each other's messages only
            try:
                for executor.step in range(STEPS):
                    if executor.step == fault.step and not executor.fails and fault.kind != "none":
                        communicator.context = replace(context, deadline_s=DEADLINE_S)
                        executor.transport._deadline_s = DEADLINE_S
                        work.sum_in(communicator.context)
                    losses.append(executor.run(work))
            except PipelineShapeError:
                if executor.fails:
                    meeting.come()  # a rank of a job stays until it is told to go, so that the others can hear of the shape
                raise
    except RingError as error:
        waited_s = error.seconds if isinstance(error, PeerSilent) else 0.0
        return {"error": type(error).__name__, "text": str(error), "place": error.place, "last_actions": error.last_actions,
                "waited_s": waited_s}
    except ValueError as error:
        return {"error": type(error).__name__, "text": str(error), "place": "".join(error.__notes__)}
    except _Slept:
        return {"error": "slept"}
    return {"error": "none", "losses": losses}


def _open(communicator: Communicator, fault: Fault, meeting: _Meeting, stack: ExitStack) -> tuple[_FaultyExecutor, _Work]:
    mesh, schedule, blocks = fault.mesh, fault.schedule, SkipJob().blocks()
    place = mesh.coordinate(communicator.context.rank)
    bounds = list(pairwise(cut_by_count(len(blocks), schedule.num_chunks)))
    chunks = {chunk: StageModule(blocks, first=bounds[chunk][0], last=bounds[chunk][1], seed=1).double()
              for chunk in range(place.stage, schedule.num_chunks, schedule.num_stages)}
    parameters = [parameter for chunk in chunks.values() for parameter in chunk.parameters()]

    def rank_of(worker: Worker) -> int:
        return mesh.rank(worker.stage, worker.replica, 0)

    ring = GradientRing(parameters, communicator, bucket_mb=0.001, group=mesh.replica_set(place.stage, 0))
    stack.callback(ring.close)
    transport = transport_of(communicator, fault.way, edges_of(schedule, rank_of))
    stack.callback(transport.close)
    worker = Worker(place.stage, place.replica)
    executor = _FaultyExecutor(schedule, worker, chunks, rank_of=rank_of, transport=transport)
    executor.transport = transport
    executor.expect(fault if fault.worker == worker else None, meeting.come)
    return executor, _Work(ring, torch.optim.SGD(parameters, lr=0.1))


class _Work:
    """A step on rows of its own making."""

    def __init__(self, ring: GradientRing, optimizer: torch.optim.Optimizer) -> None:
        generator = torch.Generator().manual_seed(2)
        self._features, self._labels = (torch.randn(ROWS, width, generator=generator, dtype=torch.float64) for width in (4, 2))
        self._ring, self._optimizer = ring, optimizer
        ring.begin()

    def sum_in(self, context: RankContext) -> None:
        """Sum gradients in this context from now on."""
        vars(self._ring._reducer)["_context"] = context

    def batch(self, micro_batch: int) -> dict[str, Tensor]:
        return {"features": self._features[micro_batch::MICRO_BATCHES]}

    def loss(self, micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        return nn.functional.mse_loss(outputs["logits"], self._labels[micro_batch::MICRO_BATCHES], reduction="sum") / ROWS

    def last_backward(self) -> None:
        self._ring.last_pass(0.0)

    def reduce(self) -> None:
        self._ring.finish()

    def step(self, loss: float = 0.0) -> None:
        self._optimizer.step()
        self._ring.begin()


class _Slept(Exception):
    """The others have given up on this rank."""


class _FaultyExecutor(Executor):
    """Fails before the action that its fault says."""

    step = 0
    transport: LinkedTransport
    _fault: Fault | None = None

    def expect(self, fault: Fault | None, wake: Callable[[], None]) -> None:
        """Fail so; ``wake`` returns when the others have given up."""
        self._fault, self._wake = fault, wake

    @property
    def fails(self) -> bool:
        """Whether this is the worker that fails."""
        return self._fault is not None

    def _do(self, action: Action, work: StepCallbacks) -> None:
        fault = self._fault
        if fault is not None and (self.step, len(self.records)) == (fault.step, fault.moment):
            self._strike(fault.kind, action)
        super()._do(action, work)

    def _strike(self, kind: FaultKind, action: Action) -> None:
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "raise":
            raise ValueError(BUG)
        elif kind == "sleep":
            self._wake()
            raise _Slept
        elif kind == "wrong shape" and action.kind is Kind.SEND_F:
            place = action.chunk + 1, action.micro_batch
            self._inputs[place] = {name: tensor[:-1] for name, tensor in self._inputs[place].items()}
        elif kind == "wrong shape":
            place = action.chunk - 1, action.micro_batch
            self._gradients[place] = [tensor[:-1] for tensor in self._gradients[place]]
