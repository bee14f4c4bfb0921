"""A training config for another number of ranks that learns the same. Pure.

The row order does not depend on the number of ranks, and gradients do not depend on the layout of a model, so a run may shrink and grow
between generations. The number of micro-batches stays: batch normalisation makes it part of what is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from sparkring.conf.schema import TrainConfig
from sparkring.conf.schema.parallel import BETWEEN_STAGES, ParallelConfig


def resized(train: TrainConfig, ranks: int, *, works: Callable[[TrainConfig], bool] = lambda _: True) -> TrainConfig | None:
    """``train`` on as many of ``ranks`` ranks as it can use, at most as many as it asks for; None if it cannot run on so few.

    Without stages it uses all of them. With stages it takes the layout that uses the most ranks: as many stages as before if possible, and
    no stage with more replicas than before.

    Args:
        train: The user's section, for all ranks.
        ranks: Ranks available.
        works: Whether the model fits a layout, e.g. has enough blocks.
    """
    if ranks >= train.num_ranks:
        return train
    if not train.parallel.pipelined:
        return train.changed(num_ranks=ranks) if ranks >= train.fewest_ranks else None
    for replicas in sorted(_smaller(train, ranks), key=lambda found: (-sum(found), -len(found), found)):
        same_stages = len(replicas) == len(train.replicas)
        one_stage = {name: ParallelConfig.model_fields[name].default for name in BETWEEN_STAGES} if len(replicas) == 1 else {}
        parallel = train.parallel.changed(
            replicas=replicas, micro_batches=train.num_micro_batches, cut=train.parallel.cut if same_stages else (),
            recompute=train.parallel.recompute_over(len(replicas)), **one_stage)
        changed = train.changed(num_ranks=sum(replicas) * train.parallel.shards, parallel=parallel)
        if works(changed):
            return changed
    return None


def _smaller(train: TrainConfig, ranks: int) -> Iterator[tuple[int, ...]]:
    """Replica counts of the stages that fit, for as many stages as before or for fewer, which then share the blocks."""
    room = ranks // train.parallel.shards
    wanted = train.replicas
    for stages in range(1, len(wanted) + 1):
        most = wanted if stages == len(wanted) else (max(wanted),) * stages
        choices = [[count for count in range(1, limit + 1) if train.num_micro_batches % count == 0] for limit in most]
        yield from (found for found in product(*choices) if sum(found) <= room)
