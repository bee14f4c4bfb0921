"""One rank of ``benchmarks.hosts``, which harness/host_ranks.py starts on its host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks import step
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing


def measure(context: RankContext, side: str, case: dict[str, Any], meet: str) -> tuple[float, float]:
    """Train by one side; returns (median seconds of a step, median seconds of summing in it).

    Args:
        context: This rank's.
        side: One of ``benchmarks.hosts.SIDES``.
        case: The fields of the ``Case``.
        meet: Address and port at which torch's ranks meet.
    """
    what = step.Case(**case)
    sides: dict[str, Callable[[], Any]] = {
        "apart": lambda: step.serial(context, what), "sparkring": lambda: step.by_sparkring(context, what),
        "torch DDP": lambda: step.by_ddp(context, what, meet), "horovod optimizer": lambda: step.by_horovod(context, what),
        "sums alone": lambda: sums_alone(context, what)}
    seconds, summing = sides[side]()
    return seconds, summing


def sums_alone(context: RankContext, case: step.Case) -> tuple[float, float]:
    """(median seconds of one round of all gradient sums without a backward pass, the same)."""
    with Communicator(context) as communicator:
        model, _ = step.make(case)
        ring = GradientRing(model.parameters(), communicator, bucket_mb=step.BUCKET_MB)

        def once() -> float:
            ring.begin(0.0)
            began = time.perf_counter()
            ring.finish()  # of zeros, as on a rank without rows
            return time.perf_counter() - began

        _, seconds = step.timed(once, case.steps)
        ring.close()
    return seconds, seconds

