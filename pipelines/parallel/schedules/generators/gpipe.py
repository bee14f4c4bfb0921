"""GPipe: all forward passes, then all backward passes.

    two stages, three micro-batches     0: F0 F1 F2 .. .. B0 B1 B2
                                        1: .. F0 F1 F2 B0 B1 B2 ..

Simple, but every micro-batch's activations are held at once. Source: Huang et al. 2019, "GPipe", arXiv:1811.06965, section 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Schedule, Worker, all_workers, check_shape


def gpipe(replicas: Sequence[int], micro_batches: int) -> Schedule:
    """All forward passes, then all backward passes, both in the order of micro-batches.

    Args:
        replicas: Replicas of each stage; they may differ.
        micro_batches: Micro-batches of the step, over all replicas.
    Returns:
        Lists of computation, without transfers.
    Raises:
        ConfigError: a stage has no replica, or there is no micro-batch.
    """
    check_shape(replicas, micro_batches)

    def actions(worker: Worker) -> tuple[Action, ...]:
        own = range(worker.replica, micro_batches, replicas[worker.stage])
        return tuple(Action(kind, worker.stage, j) for kind in (Kind.F, Kind.B) for j in own)

    return Schedule("gpipe", replicas=tuple(replicas), num_chunks=len(replicas), micro_batches=micro_batches,
                    actions={worker: actions(worker) for worker in all_workers(replicas)})
