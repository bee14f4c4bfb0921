"""Training a model in stages: this rank's chunks, their optimizer, and the sums over its stage's replicas.

    inputs       stage 0 reads the inputs of its micro-batches, the last stage their labels; activations travel by the transport
    gradients    summed over the replicas of a stage; those of tied parameters over all ranks that hold them
    loss         summed over all ranks, so that each knows it
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from sparkring.conf.schema import Config, TrainConfig
from sparkring.errors import RingError
from sparkring.models.blocks import BlockList
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.clock import clock_of
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.memory_sets import open_set_reducer
from sparkring.pipelines.parallel.schedules.records import step_record
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.schedules.simulator import TimedAction
from sparkring.pipelines.training.evaluation.evaluate import Predictions
from sparkring.pipelines.training.evaluation.interruptible import Epochs
from sparkring.pipelines.training.job.layout import Layout
from sparkring.pipelines.training.job.optimizer import clip_before_step, make_optimizer, set_learning_rate
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from sparkring.pipelines.training.strategies.pipelined_step import PipelinedStep, Share, TiedParameter
from sparkring.pipelines.training.strategies.sharded_optimizer import owners, share_after_step
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.stages import Stages
from sparkring.pipelines.training.strategies.state import (
    OPTIMIZER,
    dealt,
    named_tensors,
    pack_state,
    take_weights,
    unpack_state,
    weights_of,
)
from sparkring.pipelines.training.strategies.step import Inputs, StepResult
from sparkring.pipelines.training.strategies.step_times import StepTimes


class PipelinedStrategy:
    """One rank of a model in stages."""

    def __init__(self, config: Config, manifest: Manifest, blocks: BlockList, layout: Layout, inputs: Inputs,
                 communicator: Communicator) -> None:
        """Build this rank's chunks and nothing else of the model; open the transport and the sums with the other ranks."""
        self._layout, self._communicator = layout, communicator
        mesh, rank = layout.mesh, communicator.context.rank
        self._coordinate = coordinate = mesh.coordinate(rank)
        self._everyone = open_set_reducer(communicator, tuple(range(mesh.size)))
        self._replicas = open_set_reducer(communicator, mesh.replica_set(coordinate.stage, coordinate.shard))
        self._stages = Stages(blocks, layout, communicator, manifest, inputs=inputs, train=config.train)
        self._chunks, self._shards = self._stages.chunks, self._stages.shards
        named = {name: parameter for chunk in self._chunks.values() for name, parameter in chunk.named_parameters()}
        tied = self._open_tied(named)
        alone = {name: parameter for name, parameter in named.items() if name not in {one.name for one in tied}}
        self._shares_optimizer = config.train.parallel.shard_optimizer
        self._optimizer = self._make_optimizer(config.train, alone, tied)
        self._ring = GradientRing(alone.values(), communicator, bucket_mb=config.train.bucket_mb,
                                  group=mesh.replica_set(coordinate.stage, coordinate.shard), ring=config.train.ring)
        self._share = Share(tuple(self._chunks.values()), self._replicas, self._shards.loss_sum, self._ring, tied, self._optimizer,
                            self._everyone, self._shards.first)
        self._times = StepTimes(clock_of(inputs.device))
        self.description = self._ring.description

    def step(self, batch: Batch, rate: float, signals: Signals) -> StepResult:
        """See Strategy."""
        began = self._times.clock.mark()
        set_learning_rate(self._optimizer, rate)
        self._ring.begin()
        for one in self._share.tied:
            one.parameter.grad = None
        parts, executor = self._stages.micro_batches(batch), self._stages.executor
        step = PipelinedStep(self._share, parts, signals, global_rows=batch.global_rows)
        executor.run(step, rows=parts.rows)
        loss, all_signals, updated = step.outcome
        return StepResult(loss, step.weight, all_signals, updated, self._times.end(began, [*executor.waits, *self._ring.waits]))

    def step_record(self) -> dict[str, Any] | None:
        """See Strategy; a worker's shards act alike, so the first one reports."""
        if not self._shards.first:
            return None
        worker, done = Worker(self._coordinate.stage, self._coordinate.replica), self._stages.executor.records
        return step_record(self._layout.schedule, worker, [TimedAction(*entry) for entry in done],
                           clock_s=time.time() - time.perf_counter())

    def predict(self, loader: Epochs) -> Predictions:
        """See Strategy."""
        return self._stages.predict(loader)

    def part(self) -> dict[str, Tensor]:
        """See Strategy."""
        state = dict(named_tensors(list(self._chunks.values()), self._optimizer))
        sizes = self._shards.whole_sizes({name: tensor for name, tensor in state.items() if not self._own(name)})
        mine = {*dealt(sizes, self._coordinate.replica, self._replicas.size), *filter(self._own, state)}
        whole = self._shards.whole_state({name: tensor for name, tensor in state.items() if name in mine})
        return whole if self._shards.first else {}

    def _own(self, name: str) -> bool:
        """Whether a tensor of the state may exist on this replica only."""
        return self._shares_optimizer and name.startswith(OPTIMIZER)

    def unpack(self, state: Iterable[bytes]) -> None:
        """See Strategy."""
        unpack_state(state, list(self._chunks.values()), self._optimizer, partly=True, cut=self._shards.cut)

    def take_weights(self, weights: Iterable[bytes]) -> None:
        """See Strategy."""
        take_weights(weights, list(self._chunks.values()), cut=self._shards.cut)

    def require_equal(self) -> None:
        """See Strategy."""
        own = pack_state(list(self._chunks.values()), self._optimizer)
        digest = hashlib.sha256(save(weights_of([own])) if self._shares_optimizer else own).hexdigest()
        digests = self._communicator.gather_bytes(digest.encode(), name="equal.state")
        mesh = self._layout.mesh
        for ranks in (mesh.replica_set(stage, shard) for stage in range(mesh.num_stages) for shard in range(mesh.shards)):
            other = [rank for rank in ranks if digests[rank] != digests[ranks[0]]]
            if other:
                raise RingError(f"the state of ranks {other} differs from rank {ranks[0]}'s, which holds the same parameters; "
                                "check that all executors run the same versions of torch and sparkring.")

    def close(self) -> None:
        """See Strategy."""
        self._stages.close()
        self._ring.close()

    def _open_tied(self, named: Mapping[str, nn.Parameter]) -> tuple[TiedParameter, ...]:
        """This rank's parameters that other stages hold too; every rank opens a reducer for each shared part."""
        rank, found = self._communicator.context.rank, []
        for part, ranks in sorted(self._layout.tied_sets(self._coordinate.shard).items()):
            reducer = open_set_reducer(self._communicator, ranks if rank in ranks else (rank,))
            names = sorted({name for chunk in self._chunks.values() for name in chunk.parameters_of([part])})
            found += [TiedParameter(name, named[name], reducer) for name in names if reducer.size > 1]
        return tuple(found)

    def _make_optimizer(self, train: TrainConfig, alone: Mapping[str, nn.Parameter],
                        tied: Sequence[TiedParameter]) -> torch.optim.Optimizer:
        """Make the optimizer of this stage's parameters, or of this replica's share of them; each stage updates tied parameters itself."""
        replicas, replica = self._replicas, self._coordinate.replica
        sizes = {name: self._shards.whole_size(name, parameter) for name, parameter in alone.items()}
        owner = owners(sizes, replicas.size) if self._shares_optimizer else dict.fromkeys(alone, replica)
        own = {name: parameter for name, parameter in alone.items() if owner[name] == replica}
        optimizer = make_optimizer([*own.values(), *(one.parameter for one in tied)], train.optimizer)
        if train.optimizer.clip_norm is not None:
            held = dict.fromkeys(own, 1 if self._shares_optimizer else replicas.size) | {one.name: one.reducer.size for one in tied}
            parameters = own | {one.name: one.parameter for one in tied}
            holders = {parameters[name]: count * (1 if name in self._shards.splits else self._layout.mesh.shards)
                       for name, count in held.items()}
            clip_before_step(optimizer, train.optimizer.clip_norm, holders=holders,
                             sum_over_ranks=lambda square: self._everyone.sum_(square, "norm"))
        if self._shares_optimizer and replicas.size > 1:
            share_after_step(optimizer, list(alone.values()), [name in own for name in alone], replicas)
        return optimizer
