"""1F1B with flush: each worker starts as few micro-batches as keep the pipeline full, then alternates backward and forward.

    two stages, four micro-batches      0: F0 F1 .. B0 F2 B1 F3 B2 .. B3
                                        1: .. F0 B0 F1 B1 F2 B2 F3 B3 ..

It takes as long as GPipe, with the activations of p - s micro-batches on stage s instead of all.
Source: Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", arXiv:2006.09503, section 3.2 (PipeDream-Flush).
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.in_flight import alternate, in_flight_limits
from sparkring.pipelines.parallel.schedules.generators.list_scheduling import Lists, list_scheduled
from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Schedule, Worker, all_workers, check_shape


def one_f_one_b(replicas: Sequence[int], micro_batches: int, *, costs: Costs | None = None) -> Schedule:
    """One forward, one backward, after a warm-up that is shorter the later the stage.

    Args:
        replicas: Replicas of each stage; they may differ.
        micro_batches: Micro-batches of the step, over all replicas.
        costs: Long hops make the warm-up longer, and lists of unequal stages are fitted to the costs. Default: hops take no
            time, and stages are equally fast.
    Returns:
        Lists of computation, without transfers.
    Raises:
        ConfigError: a stage has no replica, or there is no micro-batch.
    """
    check_shape(replicas, micro_batches)
    equal = len(set(replicas)) == 1
    lists = _textbook(replicas, micro_batches, costs) if equal else list_scheduled(replicas, micro_batches, split=False, costs=costs)
    return Schedule("1f1b", replicas=tuple(replicas), num_chunks=len(replicas), micro_batches=micro_batches, actions=lists)


def _textbook(replicas: Sequence[int], micro_batches: int, costs: Costs | None) -> Lists:
    limits = in_flight_limits(replicas, costs)

    def actions(worker: Worker) -> tuple[Action, ...]:
        own = range(worker.replica, micro_batches, replicas[worker.stage])
        forwards, backwards = ([Action(kind, worker.stage, j) for j in own] for kind in (Kind.F, Kind.B))
        return alternate(forwards, backwards, limit=limits[worker.stage])

    return {worker: actions(worker) for worker in all_workers(replicas)}
