"""The memory that a schedule needs for activations on each worker: a count along its list, by the model of ``Costs``.

Messages, parameters, gradients and the optimizer's state are not counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Schedule, Worker


class Peak(NamedTuple):
    """The most activations that a worker holds at once."""

    micro_batches: int
    """Micro-batches of all its chunks, from the start of F until the end of B, or of W."""
    num_bytes: float


def is_checkpointed(costs: Costs, action: Action, last_micro_batch: int) -> bool:
    """Whether the forward pass of the action's micro-batch runs twice; ``last_micro_batch`` is its worker's last."""
    mode = costs.checkpoint[action.chunk] if costs.checkpoint else "never"
    return mode == "always" or (mode == "except_last" and action.micro_batch != last_micro_batch)


def last_micro_batch(schedule: Schedule, worker: Worker) -> int:
    """The last micro-batch of ``worker``; negative if it has none."""
    count = schedule.replicas[worker.stage]
    return worker.replica + (schedule.micro_batches - 1 - worker.replica) // count * count


def peak_activations(schedule: Schedule, costs: Costs, worker: Worker) -> Peak:
    """The most micro-batches and bytes that ``worker`` holds along its list."""
    last = last_micro_batch(schedule, worker)
    full, stash, kept = (_by_chunk(values, schedule) for values in (costs.activation_bytes, costs.stash_bytes, costs.weight_bytes))
    held = most_held = 0
    size = most_size = 0.0
    for action in schedule.actions[worker]:
        kind, chunk, _ = action
        if kind is Kind.F:
            held += 1
            size += stash[chunk] if is_checkpointed(costs, action, last) else full[chunk]
            most_held, most_size = max(most_held, held), max(most_size, size)
        elif kind in (Kind.B, Kind.I):
            if is_checkpointed(costs, action, last):
                most_size = max(most_size, size + full[chunk])
                size -= stash[chunk]
            else:
                size -= full[chunk]
            if kind is Kind.B:
                held -= 1
            else:
                size += kept[chunk]
                most_size = max(most_size, size)
        elif kind is Kind.W:
            held -= 1
            size -= kept[chunk]
    return Peak(most_held, most_size)


def _by_chunk(values: Sequence[float], schedule: Schedule) -> Sequence[float]:
    return values or (0.0,) * schedule.num_chunks
