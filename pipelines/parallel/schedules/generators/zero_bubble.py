"""Zero-bubble (ZB-H1): the backward pass in two halves; the half that no other stage needs fills the gaps.

I, the gradient of a chunk's input, goes to the previous stage, in 1F1B's order. W, the gradients of its weights, stays. Each W
follows its I, except that stage s delays s of them to the end, where 1F1B would wait for its last gradients. With F, I and W
equally long, a worker is idle for (p - 1) of them, in 1F1B for 3 (p - 1). No worker holds more than 1F1B's first stage.

    three stages, four micro-batches    0: F0 F1 F2 .. .. I0 W0 F3 I1 W1 I2 W2 I3 W3
                                        1: .. F0 F1 .. I0 W0 F2 I1 F3 I2 W1 I3 W2 W3
                                        2: .. .. F0 I0 W0 F1 I1 F2 I2 F3 I3 W1 W2 W3

The paper delays them from the start; delayed at the end, they need less memory for most of the step.
Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 2.1 (ZB-H1).
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.in_flight import in_flight_limits
from sparkring.pipelines.parallel.schedules.generators.list_scheduling import Lists, list_scheduled
from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Schedule, Worker, all_workers, check_shape


def zero_bubble(replicas: Sequence[int], micro_batches: int, *, costs: Costs | None = None) -> Schedule:
    """1F1B with I and W apart.

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
    lists = _textbook(replicas, micro_batches, costs) if equal else list_scheduled(replicas, micro_batches, split=True, costs=costs)
    return Schedule("zero_bubble", replicas=tuple(replicas), num_chunks=len(replicas), micro_batches=micro_batches, actions=lists)


def _textbook(replicas: Sequence[int], micro_batches: int, costs: Costs | None) -> Lists:
    limits = in_flight_limits(replicas, costs)

    def actions(worker: Worker) -> tuple[Action, ...]:
        own = range(worker.replica, micro_batches, replicas[worker.stage])
        limit, most = limits[worker.stage], limits[0]
        put_off = range(max(0, len(own) - most), len(own) - limit)
        kinds = [Kind.F] * min(limit, len(own))
        for place in range(len(own)):
            kinds += [Kind.I] if place in put_off else [Kind.I, Kind.W]
            kinds += [Kind.F] if limit + place < len(own) else []
        kinds += [Kind.W] * len(put_off)
        numbers = {kind: iter(own) for kind in (Kind.F, Kind.I, Kind.W)}
        return tuple(Action(kind, worker.stage, next(numbers[kind])) for kind in kinds)

    return {worker: actions(worker) for worker in all_workers(replicas)}
