"""Seconds of a model's blocks as shards compute them, sums included: measured on real groups of ranks.

    ranks 0 1 2 3, shards of 2      (0 1) (2 3)      both groups measure at once
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparkring.conf.schema import OptimizerConfig
from sparkring.errors import LayoutRefused
from sparkring.models.blocks import BlockList
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.memory_sets import open_set_reducer
from sparkring.pipelines.parallel.collectives.sets import SetReducer
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Ranks
from sparkring.pipelines.parallel.tensor_parallel.sharding import AbsentShards, shard_blocks
from sparkring.pipelines.training.profiling.block_times import BlockSeconds, Loss, TimedModel, time_blocks

SHARDS = (2, 4, 8)
"""Numbers of shards that are tried."""


def shard_counts(context: RankContext, blocks: BlockList, optimizer: OptimizerConfig) -> list[int]:
    """Numbers of shards that the model can be dealt to and that divide each host's ranks; none if the optimizer needs whole layers."""
    if optimizer.needs_whole_layers:
        return []
    hosts = set(context.hosts)
    return [count for count in SHARDS if all(context.hosts.count(host) % count == 0 for host in hosts) and _can_be_dealt(blocks, count)]


def shard_groups(context: RankContext, blocks: BlockList, optimizer: OptimizerConfig) -> list[Ranks]:
    """The process sets that the measurements need."""
    return [tuple(range(first, first + count)) for count in shard_counts(context, blocks, optimizer)
            for first in range(0, context.size, count)]


def time_shards(communicator: Communicator, subject: TimedModel, loss: Callable[[SetReducer], Loss],
                ) -> list[tuple[int, list[BlockSeconds]]]:
    """Measure the blocks of each number of shards; every rank of the ring calls this.

    Args:
        communicator: A communicator that was started with ``shard_groups``.
        subject: The whole model.
        loss: Makes the loss of a shard's outputs from the shards' reducer.
    Returns:
        (number of shards, seconds of each block).
    """
    rank, found = communicator.context.rank, []
    for count in shard_counts(communicator.context, subject.blocks, subject.optimizer):
        first = rank // count * count
        reducer = open_set_reducer(communicator, tuple(range(first, first + count)))
        found.append((count, time_blocks(replace(subject, blocks=shard_blocks(subject.blocks, reducer)), loss(reducer))))
    return found


def _can_be_dealt(blocks: BlockList, count: int) -> bool:
    try:
        shard_blocks(blocks, AbsentShards(count))
    except LayoutRefused:
        return False
    return True
