"""Measures what a message between hosts costs, by sums in a ring of the ranks that will sum; every rank gets the same numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from sparkring.pipelines.parallel.allreduce.costs import LinkCost, Way
from sparkring.pipelines.parallel.allreduce.exchange import Exchange
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.mesh import Ranks
from sparkring.pipelines.parallel.planner.fit import fit_sum

MEASURED = Way("ring")
"""How the ranks sum while they are measured."""
SIZES = (1 << 10, 1 << 19)
"""Bytes of a sum: about what messages cost, and about what bytes do."""
ADDED_BYTES = 1 << 22
WARM_UP, REPETITIONS = 1, 5


def measure_link(communicator: Communicator, exchange: Exchange | None, ranks: Ranks) -> LinkCost:
    """The cost of messages between ``ranks``: of each size the slowest rank's median. Every rank of the ring calls this.

    Args:
        communicator: The joined ring.
        exchange: This rank's connections, with those of the ring of ``ranks``; None if it does not sum.
        ranks: Those that sum together; of one alone the cost is nothing.
    """
    context, nothing = communicator.context, [math.nan] * (len(SIZES) + 1)
    mine = nothing if exchange is None else _measured(exchange, ranks.index(context.rank), len(ranks), context.deadline_s)
    found = communicator.gather(torch.tensor([mine], dtype=torch.float64), name="allreduce.link")[list(ranks)].max(dim=0).values.tolist()
    if len(ranks) == 1:
        return LinkCost(0.0, 0.0, 0.0)
    return fitted(found[:-1], found[-1] / ADDED_BYTES, len(ranks))


def fitted(seconds: Sequence[float], add_byte_s: float, count: int) -> LinkCost:
    """The cost of a message, from the seconds of rings of ``count`` ranks that sum ``SIZES``."""
    line = fit_sum({count: {size: [each] for size, each in zip(SIZES, seconds, strict=True)}}).step
    return LinkCost(message_s=line.alpha_s, byte_s=max(0.0, line.beta_s - add_byte_s / 2), add_byte_s=add_byte_s)


def _measured(exchange: Exchange, place: int, count: int, deadline_s: float) -> list[float]:
    """Seconds of a sum of each of ``SIZES``, and of adding ``ADDED_BYTES``."""
    seconds = []
    for size in SIZES:
        buffer, until = torch.zeros(size // 4), time.monotonic() + deadline_s
        rounds = MEASURED.rounds(place, range(count), len(buffer))
        seconds.append(_median_s(lambda: exchange.play(rounds, buffer, until=until)))  # noqa: B023 (called at once)
    one, other = torch.zeros(2, ADDED_BYTES // 4)
    return [*seconds, _median_s(lambda: one.add_(other))]


def _median_s(action: Callable[[], object]) -> float:
    taken = []
    for repetition in range(WARM_UP + REPETITIONS):
        began = time.perf_counter()
        action()
        if repetition >= WARM_UP:
            taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2]
