"""The most memory that a rank of each stage needs: parameters, gradients, optimizer, activations in flight, messages. Pure.

Gradients lie in the buffers in which they are summed, so they are counted once. With a sharded optimizer, a replica keeps its
part of the state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from sparkring.pipelines.parallel.planner.cost_model import Cluster, ModelProfile
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.memory import peak_activations
from sparkring.pipelines.parallel.schedules.schedule import Schedule


class MicroBatchRows(NamedTuple):
    """Rows of a micro-batch."""

    mean: float
    most: int

    @classmethod
    def of(cls, batch_rows: int, micro_batches: int) -> Self:
        """The rows of a micro-batch if ``batch_rows`` are cut into ``micro_batches``."""
        return cls(batch_rows / micro_batches, math.ceil(batch_rows / micro_batches))


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Bytes of one rank."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    """Activations of all micro-batches in flight."""
    messages: float
    """Messages at the stage's borders, one micro-batch each way."""
    process: float
    """Memory of the process without any model."""

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.messages + self.process

    @property
    def largest(self) -> tuple[str, float]:
        """The largest part: its name and bytes."""
        return max(vars(self).items(), key=lambda item: item[1])


def stage_memories(model: ModelProfile, cluster: Cluster, schedule: Schedule, *, bounds: Sequence[int], costs: Costs, rows: MicroBatchRows,
                   owners: Sequence[int]) -> tuple[StageMemory, ...]:
    """(stages,) the most that a rank of each stage holds.

    Args:
        model: Bytes of its blocks.
        cluster: Bytes of a bare process.
        schedule: Determines how many micro-batches each worker holds.
        bounds: First block of each chunk and, last, the number of blocks.
        costs: Bytes of activations by chunk, of the largest micro-batch.
        rows: Rows of a micro-batch.
        owners: (stages,) ranks among which a stage's optimizer state is sharded; 1: each keeps all of it.
    """
    stages = schedule.num_stages
    parameters, messages = [0.0] * stages, [0.0] * stages
    for chunk in range(schedule.num_chunks):
        first, last = bounds[chunk], bounds[chunk + 1]
        parameters[chunk % stages] += model.bytes_of(first, last)
        incoming = model.blocks[first - 1].border_bytes if first else 0.0
        outgoing = model.blocks[last - 1].border_bytes if last < len(model.blocks) else 0.0
        messages[chunk % stages] += rows.most * (incoming + outgoing)
    activations = [0.0] * stages
    for worker in schedule.workers:
        own = range(worker.replica, schedule.micro_batches, schedule.replicas[worker.stage])
        all_rows = sum(costs.activation_bytes[worker.stage::stages]) / rows.most * math.ceil(len(own) * rows.mean)
        held = min(peak_activations(schedule, costs, worker).num_bytes, all_rows)
        activations[worker.stage] = max(activations[worker.stage], held)
    return tuple(StageMemory(
        parameters=parameters[stage], gradients=parameters[stage],
        optimizer=model.optimizer_copies * parameters[stage] / owners[stage],
        activations=activations[stage], messages=messages[stage], process=cluster.process_bytes) for stage in range(stages))
