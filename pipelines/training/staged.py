"""A model in stages as the loop trains it: this rank's chunks, their optimizer, the sums within its stage's replicas.

    stage 0 reads the inputs of its micro-batches, the last stage their labels; what lies between travels by the transport
    gradients are summed over the replicas of a stage, those of parts that stages share over all their ranks
    the loss is summed over all ranks, so each knows it
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparkring.conf.schema import Config
from sparkring.errors import RingError
from sparkring.models.blocks import BlockList, StageModule, draw_seed
from sparkring.pipelines.data.loader import Batch, Loader
from sparkring.pipelines.data.manifest import Manifest
from sparkring.pipelines.parallel.communicator import Communicator
from sparkring.pipelines.parallel.executor import Executor, edges_of
from sparkring.pipelines.parallel.horovod_transport import HorovodTransport
from sparkring.pipelines.parallel.schedule import Worker
from sparkring.pipelines.parallel.sidecar_transport import SidecarTransport
from sparkring.pipelines.parallel.tensor_parallel.set_reducer import HorovodSetReducer
from sparkring.pipelines.training.gradient_ring import GradientRing
from sparkring.pipelines.training.layout import Layout
from sparkring.pipelines.training.optimizer import make_optimizer, set_learning_rate
from sparkring.pipelines.training.state import merge_states, pack_state, unpack_state
from sparkring.pipelines.training.step import Inputs, StepCost
from sparkring.pipelines.training.tasks import LossSum, loss_of
from sparkring.pipelines.training.trainee import Predictions

TRANSPORTS = {"horovod": HorovodTransport, "sidecar": SidecarTransport}


class StagedTrainee:
    """One rank of a model in stages."""

    def __init__(self, config: Config, manifest: Manifest, blocks: BlockList, layout: Layout, inputs: Inputs,
                 communicator: Communicator) -> None:
        """Build this rank's chunks and nothing else of the model; open the transport and the sums with the other ranks."""
        self._layout, self._communicator = layout, communicator
        mesh, schedule = layout.mesh, layout.schedule
        self._place = mesh.place(communicator.context.rank)
        torch.manual_seed(config.train.seed)
        self._chunks = _build_chunks(blocks, layout, self._place.stage, seed=draw_seed(), inputs=inputs)
        named = {name: parameter for chunk in self._chunks.values() for name, parameter in chunk.named_parameters()}
        tied = tuple(_TiedParameter(name, named[name], HorovodSetReducer(communicator, ranks))
                     for part, ranks in sorted(layout.tied_sets().items()) if len(ranks) > 1
                     for name in sorted({name for chunk in self._chunks.values() for name in chunk.parameters_of([part])}))
        apart = {one.name for one in tied}
        self._optimizer = make_optimizer(named.values(), config.train.optimizer)
        self._ring = GradientRing([parameter for name, parameter in named.items() if name not in apart], communicator,
                                  bucket_mb=config.train.bucket_mb, group=mesh.replica_set(self._place.stage, self._place.shard))
        self._share = _Share(self._place.replica, mesh.replicas[self._place.stage], inputs, loss_of(manifest.task, manifest.preprocessing),
                             self._ring, tied, self._optimizer)

        def rank_of(worker: Worker) -> int:
            return mesh.rank(worker.stage, worker.replica, self._place.shard)

        self._transport = TRANSPORTS[layout.transport](communicator, edges_of(schedule, rank_of), dynamic_shapes=True)
        self._executor = Executor(schedule, Worker(self._place.stage, self._place.replica), self._chunks, rank_of=rank_of,
                                  transport=self._transport, recompute=config.train.parallel.recompute)
        self.description = self._ring.description

    def step(self, batch: Batch, rate: float) -> tuple[float, StepCost]:
        """See Trainee."""
        began = time.perf_counter()
        set_learning_rate(self._optimizer, rate)
        self._ring.begin()
        for one in self._share.tied:
            one.parameter.grad = None
        share = self._executor.run(_Step(self._share, batch))
        loss = self._communicator.sum(torch.tensor([share], dtype=torch.float64), name="loss")
        waited = self._executor.wait_s + self._ring.wait_s
        return float(loss[0]), StepCost(time.perf_counter() - began - waited, waited)

    def predict(self, loader: Loader) -> Predictions:
        """See Trainee."""
        for chunk in self._chunks.values():
            chunk.eval()
        try:
            for batch in loader.epoch(0):
                step = _Step(self._share, batch)
                for micro_batch, outputs in self._executor.predict(step.batch):
                    labels = step.labels(micro_batch)
                    if len(labels):
                        yield only(outputs), labels
        finally:
            for chunk in self._chunks.values():
                chunk.train()

    def pack(self) -> bytes:
        """See Trainee."""
        first = self._place.replica == 0 and self._place.shard == 0
        parts = self._communicator.gather_bytes(self._own_state() if first else b"", name="state")
        return merge_states(part for part in parts if part) if self._communicator.context.rank == 0 else b""

    def unpack(self, state: bytes) -> None:
        """See Trainee."""
        unpack_state(state, list(self._chunks.values()), self._optimizer, partly=True)

    def require_equal(self) -> None:
        """See Trainee."""
        digest = hashlib.sha256(self._own_state()).hexdigest()
        digests = self._communicator.gather_bytes(digest.encode(), name="equal.state")
        mesh = self._layout.mesh
        for stage in range(mesh.num_stages):
            ranks = mesh.replica_set(stage, 0)
            other = [rank for rank in ranks if digests[rank] != digests[ranks[0]]]
            if other:
                raise RingError(f"the state of ranks {other} differs from rank {ranks[0]}'s, which holds the same stage {stage}. "
                                "Check that all executors run the same versions of torch and sparkring.")

    def close(self) -> None:
        """See Trainee."""
        self._transport.drain()
        self._transport.close()
        self._ring.close()

    def _own_state(self) -> bytes:
        return pack_state(list(self._chunks.values()), self._optimizer)


@dataclass(frozen=True)
class _TiedParameter:
    """A parameter that other stages hold too."""

    name: str
    parameter: nn.Parameter
    reducer: HorovodSetReducer

    def sum_gradient(self) -> None:
        """Sum over all who hold it; zeros where no pass reached it."""
        if self.parameter.grad is None:
            self.parameter.grad = torch.zeros_like(self.parameter)
        self.reducer.sum_(self.parameter.grad, f"tied.{self.name}")


@dataclass(frozen=True)
class _Share:
    """What a worker's steps have in common."""

    replica: int
    replicas: int
    """Of its stage."""
    inputs: Inputs
    loss_sum: LossSum
    ring: GradientRing
    tied: tuple[_TiedParameter, ...]
    optimizer: torch.optim.Optimizer


class _Step:
    """What one step is about, for the executor."""

    def __init__(self, share: _Share, batch: Batch) -> None:
        self._share, self._global_rows, self._parts = share, batch.global_rows, batch.micro_batches()

    def batch(self, micro_batch: int) -> dict[str, Tensor]:
        """See StepWork."""
        return self._share.inputs.of(self._part(micro_batch))

    def labels(self, micro_batch: int) -> Tensor:
        """What the last chunk is to predict."""
        return self._share.inputs.labels(self._part(micro_batch))

    def loss(self, micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        """See StepWork."""
        return self._share.loss_sum(only(outputs), self.labels(micro_batch)) / self._global_rows

    def last_backward(self) -> None:
        """See StepWork."""
        self._share.ring.last_pass(0.0)

    def reduce(self) -> None:
        """See StepWork."""
        self._share.ring.finish()
        for one in self._share.tied:
            one.sum_gradient()

    def step(self) -> None:
        """See StepWork."""
        self._share.optimizer.step()

    def _part(self, micro_batch: int) -> dict[str, Tensor]:
        """This rank's tensors of a micro-batch: they are dealt to the replicas round and round."""
        return self._parts[(micro_batch - self._share.replica) // self._share.replicas]


def only(outputs: Mapping[str, Tensor]) -> Tensor:
    """The model's one output."""
    (output,) = outputs.values()
    return output


def _build_chunks(blocks: BlockList, layout: Layout, stage: int, *, seed: int, inputs: Inputs) -> dict[int, StageModule]:
    """This stage's chunks; a part that several of them hold is one module."""
    chunks: dict[int, StageModule] = {}
    held: dict[str, nn.Module] = {}
    for number in range(stage, layout.schedule.num_chunks, layout.mesh.num_stages):
        chunk = StageModule(blocks, first=layout.bounds[number], last=layout.bounds[number + 1], seed=seed)
        for part in (part for part, chunks_of_part in layout.tied.items() if number in chunks_of_part):
            if part in held:
                chunk.set_submodule(part, held[part])
            else:
                held[part] = chunk.get_submodule(part)
        chunks[number] = chunk.to(inputs.device, inputs.dtype)
    return chunks
