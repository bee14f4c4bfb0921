"""A model in stages on one rank: its chunks, its micro-batches, the messages, and forward passes. Knows no optimizer.

    training      uses the chunks and the executor             pipelined.py
    evaluating    passes over a split's rows                   pipelines/training/evaluate_rank.py
    generating    one pass a token                             pipelines/training/generate_rank.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from sparkring.conf.schema import TrainConfig
from sparkring.models.blocks import BlockList, StageModule, draw_seed
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.row_schema import WEIGHT
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.memory_sets import open_set_reducer
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.stages.executor import Executor
from sparkring.pipelines.parallel.tensor_parallel.sharding import shard_blocks
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.catalogue import open_transport
from sparkring.pipelines.training.evaluation.interruptible import Epochs
from sparkring.pipelines.training.job.layout import Layout
from sparkring.pipelines.training.strategies.shards import Shards
from sparkring.pipelines.training.strategies.step import Inputs


class Stages:
    """One rank's part of a model in stages."""

    def __init__(self, blocks: BlockList, layout: Layout, communicator: Communicator, manifest: Manifest, *, inputs: Inputs,
                 train: TrainConfig, more_edges: Sequence[Edge] = ()) -> None:
        """Build this rank's chunks and nothing else of the model, with initial weights; open the transport.

        Args:
            blocks: The whole model's.
            layout: Which rank does what.
            communicator: Started with the layout's process sets; every rank makes its stages at the same point.
            manifest: Describes the task.
            inputs: Which tensors of a batch the model and the loss take, and in which precision.
            train: The seed of the weights, the transport's and the executor's settings.
            more_edges: Edges for messages that the schedule does not have.
        """
        self.layout, self._inputs = layout, inputs
        self.coordinate = coordinate = layout.mesh.coordinate(communicator.context.rank)
        shards = open_set_reducer(communicator, layout.mesh.shard_set(coordinate.stage, coordinate.replica))
        torch.manual_seed(train.seed)
        self.chunks = _build_chunks(shard_blocks(blocks, shards), layout, coordinate.stage, seed=draw_seed(), inputs=inputs)
        self.shards = Shards(shards, self.chunks.values(), manifest, train)
        self.transport = open_transport(layout.transport, communicator, [*layout.edges(), *more_edges],
                                        dynamic_shapes=train.parallel.dynamic_shapes)
        self.executor = Executor(layout.schedule, Worker(coordinate.stage, coordinate.replica), self.chunks,
                                 rank_of=partial(layout.rank_of, shard=coordinate.shard), transport=self.transport,
                                 recompute=train.parallel.recompute_of(coordinate.stage), device=inputs.device)

    def micro_batches(self, batch: Batch) -> MicroBatches:
        """This rank's part of a batch."""
        return MicroBatches(batch, self._inputs, replica=self.coordinate.replica, replicas=self.layout.mesh.replicas[self.coordinate.stage])

    def predict(self, loader: Epochs) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (logits, labels) of a split's rows, each row on one rank, in evaluation mode and without gradients."""
        with evaluating(self.chunks.values()):
            for batch in loader.epoch(0):
                parts = self.micro_batches(batch)
                for micro_batch, outputs in self.executor.predict(parts.inputs, rows=parts.rows):
                    labels, logits = parts.labels(micro_batch), self.shards.whole_outputs(only(outputs))
                    if len(labels) and self.shards.first:
                        yield logits, labels

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take this rank's part of a whole model's parameters and buffers."""
        for chunk in self.chunks.values():
            chunk.load_state_dict({name: self.shards.cut(name, weights[name]) for name in chunk.state_dict()})

    def close(self) -> None:
        """Wait for all messages, then release what is shared with other ranks."""
        self.transport.drain()
        self.transport.close()


class MicroBatches:
    """One worker's micro-batches of a batch, by their numbers over all replicas: they are dealt to the replicas round-robin."""

    def __init__(self, batch: Batch, inputs: Inputs, *, replica: int, replicas: int) -> None:
        """Take this replica's rows.

        Args:
            batch: From the replica's loader.
            inputs: Which of its tensors the model and the loss take.
            replica: This worker's replica of its stage.
            replicas: The number of replicas of its stage.
        """
        self._inputs, self._replica, self._replicas, self._whole = inputs, replica, replicas, batch.tensors
        self._parts, self._rows, self._epoch = batch.micro_batches(), batch.micro_batch_rows, batch.epoch

    def inputs(self, micro_batch: int) -> dict[str, Tensor]:
        """The inputs of the first chunk."""
        return self._inputs.of(self._parts[self._place(micro_batch)], epoch=self._epoch)

    def labels(self, micro_batch: int) -> Tensor:
        """The labels that the last chunk predicts."""
        return self._inputs.labels(self._parts[self._place(micro_batch)])

    def targets(self, micro_batch: int) -> tuple[Tensor, ...]:
        """What the loss takes beside the last chunk's output (``Inputs.targets``)."""
        return self._inputs.targets(self._parts[self._place(micro_batch)])

    def weight(self) -> float | None:
        """Sum of the weights of this replica's rows, 0 where another stage reads them; None if rows have no weights."""
        if not self._inputs.weighted:
            return None
        return float(self._whole[WEIGHT].sum()) if WEIGHT in self._whole else 0.0

    def rows(self, micro_batch: int) -> int:
        """Number of rows of a micro-batch; stages that read no rows know it, too."""
        return self._rows[self._place(micro_batch)]

    def _place(self, micro_batch: int) -> int:
        return (micro_batch - self._replica) // self._replicas


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put modules in evaluation mode inside the block, and in training mode after it."""
    modules = list(modules)
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module in modules:
            module.train()


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
        inputs.place(chunk)
        chunks[number] = chunk
    return chunks
