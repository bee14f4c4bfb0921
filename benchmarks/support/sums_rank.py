"""One rank of ``benchmarks.collectives``, which harness/host_ranks.py starts on its host."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import torch

from sparkring.conf.schema import RingConfig
from sparkring.pipelines.parallel.allreduce.gradients import GradientReducer, open_gradient_reducer
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext

TORCH = "torch"
AT_ONCE_BYTES, MOST_AT_ONCE = 1 << 22, 50
"""Small sums are timed several at a time, so that the start of the first counts for little."""


def measure(context: RankContext, size: int, sides: Sequence[str], rounds: int, meet: str) -> dict[str, list[float]]:
    """Seconds of a sum of ``size`` bytes in each round, by side.

    Args:
        context: This rank's.
        size: Bytes of the buffer.
        sides: ``torch``, and values of ``train.ring.allreduce``.
        rounds: Rounds, after one to warm up.
        meet: Address and port at which torch's ranks meet, if it is among the sides.
    """
    import torch.distributed as dist

    if TORCH in sides:
        dist.init_process_group("gloo", init_method=f"tcp://{meet}", rank=context.rank, world_size=context.size)
    buffer, device = torch.zeros(size // 4), torch.device("cpu")
    repeats = max(1, min(MOST_AT_ONCE, AT_ONCE_BYTES // size))
    with Communicator(context) as communicator:
        reducers = {side: open_gradient_reducer(communicator, [len(buffer)], torch.float32, device=device,
                                                ring=RingConfig.model_validate({"allreduce": side})) for side in sides if side != TORCH}
        actions: dict[str, Callable[[], object]] = {side: _sums_of(reducer) for side, reducer in reducers.items()}
        actions[TORCH] = lambda: dist.all_reduce(buffer)
        found: dict[str, list[float]] = {side: [] for side in sides}
        order = random.Random(0)  # noqa: S311 - the same on all ranks, so that no side always comes after the same other one
        for number in range(rounds + 1):
            for side in order.sample(sides, len(sides)):
                communicator.barrier(f"{side}.{number}")
                began = time.perf_counter()
                for _ in range(repeats):
                    actions[side]()
                found[side].append((time.perf_counter() - began) / repeats)
        for reducer in reducers.values():
            reducer.close()
    if TORCH in sides:
        dist.barrier()
        dist.destroy_process_group()
    return {side: seconds[1:] for side, seconds in found.items()}


def _sums_of(reducer: GradientReducer) -> Callable[[], None]:
    def once() -> None:
        reducer.ready(0)
        reducer.finish()

    return once
