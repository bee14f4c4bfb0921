"""Interleaved 1F1B: each stage holds several chunks of the model, so the pipeline fills and drains in smaller pieces.

    two stages, two chunks each, two micro-batches; chunks 0 and 2 lie on stage 0, chunks 1 and 3 on stage 1

    0: F0/0 F1/0 F0/2 F1/2 .... B0/2 .... B1/2 B0/0 B1/0
    1: .... F0/1 F1/1 F0/3 B0/3 F1/3 B1/3 B0/1 B1/1 ....

Micro-batches pass in groups: a group goes through a worker's first chunk, then through its second, and so on. The paper has
groups of p, hence micro-batches in multiples of p. Here the step is cut into groups of p or a few more, larger ones first.
Fewer than p micro-batches make one group, whose forward passes all come before its backward passes.
Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", arXiv:2104.04473, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sparkring.errors import ConfigError
from sparkring.pipelines.parallel.schedules.generators.in_flight import alternate
from sparkring.pipelines.parallel.schedules.generators.one_f_one_b import one_f_one_b
from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Schedule, Worker, all_workers, check_shape


def interleaved(replicas: Sequence[int], micro_batches: int, *, chunks_per_stage: int) -> Schedule:
    """One forward, one backward, over ``chunks_per_stage`` chunks per stage.

    Args:
        replicas: Replicas of each stage; all the same.
        micro_batches: Micro-batches of the step, over all replicas; any number.
        chunks_per_stage: 1 gives plain 1F1B.
    Returns:
        Lists of computation, without transfers.
    Raises:
        ConfigError: replicas are unequal, a stage has no chunk or no replica, or there is no micro-batch.
    """
    check_shape(replicas, micro_batches)
    if chunks_per_stage < 1:
        raise ConfigError(f"an interleaved schedule with {chunks_per_stage} chunks per stage; it needs at least 1, and helps from 2 on.")
    if len(set(replicas)) > 1:
        raise ConfigError(f"an interleaved schedule over {list(replicas)} replicas; each micro-batch returns to every stage, so stages "
                          "need equally many replicas. Give all the same number, or use 1f1b or zero_bubble, which allow any.")
    if chunks_per_stage == 1:
        lists = one_f_one_b(replicas, micro_batches).actions
    else:
        lists = {worker: _actions(worker, replicas, micro_batches, chunks_per_stage) for worker in all_workers(replicas)}
    return Schedule("interleaved", replicas=tuple(replicas), num_chunks=len(replicas) * chunks_per_stage, micro_batches=micro_batches,
                    actions=lists)


def _actions(worker: Worker, replicas: Sequence[int], micro_batches: int, chunks_per_stage: int) -> tuple[Action, ...]:
    stages = len(replicas)
    groups = group_micro_batches(range(worker.replica, micro_batches, replicas[worker.stage]), stages)
    chunks = range(worker.stage, stages * chunks_per_stage, stages)
    forwards = [Action(Kind.F, chunk, j) for group in groups for chunk in chunks for j in group]
    backwards = [Action(Kind.B, chunk, j) for group in groups for chunk in reversed(chunks) for j in group]
    largest = len(groups[0])
    warm_up = (chunks_per_stage - 1) * largest + 2 * (stages - 1 - worker.stage)
    limit = len(forwards) if largest < stages else warm_up + 1
    return alternate(forwards, backwards, limit=limit)


def group_micro_batches(own: Sequence[int], stages: int) -> list[Sequence[int]]:
    """Cut a worker's micro-batches into as many groups of at least ``stages`` as possible: nearly equal, larger ones first."""
    count = max(1, len(own) // stages)
    small, larger = divmod(len(own), count)
    ends = [group * small + min(group, larger) for group in range(count + 1)]
    return [own[start:stop] for start, stop in pairwise(ends)]
