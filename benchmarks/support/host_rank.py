"""One rank of ``benchmarks.hosts``: started on its host with an order as JSON, it prints its figures as the last line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Do the order: ``{"side": ..., "case": {...}, "context": {...}, "environment": {...}, "meet": address and port}``."""
    order = json.loads(sys.argv[1])
    os.environ.update(order["environment"])
    import torch

    from benchmarks import step
    from sparkring.pipelines.parallel.context import RankContext

    torch.set_num_threads(1)
    context = RankContext(**order["context"] | {"hosts": tuple(order["context"]["hosts"])})
    case = step.Case(**order["case"])
    sides: dict[str, Callable[[], Any]] = {
        "apart": lambda: step.serial(context, case), "sparkring": lambda: step.by_sparkring(context, case),
        "torch DDP": lambda: step.by_ddp(context, case, order["meet"]), "horovod optimizer": lambda: step.by_horovod(context, case),
        "sums alone": lambda: sums_alone(context, case)}
    print(json.dumps(sides[order["side"]]()), flush=True)


def sums_alone(context: Any, case: Any) -> tuple[float, float]:
    """(median seconds of one round of all gradient sums without a backward pass, the same)."""
    from benchmarks import step
    from sparkring.pipelines.parallel.collectives.communicator import Communicator
    from sparkring.pipelines.training.strategies.gradient_ring import GradientRing

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


if __name__ == "__main__":
    main()
