"""Measures what each way to sum costs, by sums of the ranks that will sum; every rank gets the same numbers."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence

import torch

from sparkring.pipelines.parallel.allreduce.costs import Cost, Way
from sparkring.pipelines.parallel.allreduce.exchange import Exchange
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.mesh import Ranks

REPETITIONS = {1 << 10: 15, 1 << 15: 15, 1 << 18: 9, 1 << 20: 5}
"""By the bytes of a sum, how often each way is timed, after one to warm up. No gap is wide: between 32 KB and 1 MB lines cross. Fewer bytes
than 1 MB fit into buffers on the way and tell nothing of a link."""
MOST_BYTES, OF_LARGEST = 1 << 23, 7
"""The largest buffer, cut to so many bytes, is timed so often, if it is above 1 MB: most bytes of a job travel in buffers of that size."""
LONGEST_S = 0.1
"""It is not timed if a way would take longer."""


def measure_costs(communicator: Communicator, exchange: Exchange | None, ranks: Ranks, among: Sequence[Way], *,
                  largest: int) -> dict[Way, Cost]:
    """The costs of some ways to sum between ``ranks``: of each size the median of the slowest rank's seconds. Every rank calls this.

    Args:
        communicator: The joined ring.
        exchange: This rank's connections; None if it does not sum.
        ranks: Those that sum together.
        among: The ways.
        largest: Bytes of the largest buffer.
    Returns:
        By way; nothing where there is nothing to choose: one way, or one rank that sums alone.
    """
    timed: dict[Way, dict[int, float]] = {way: {} for way in among} if len(among) > 1 and len(ranks) > 1 else {}
    own = min(largest, MOST_BYTES) // 4 * 4
    for size, repetitions in (*REPETITIONS.items(), (own, OF_LARGEST)):
        wanted = timed and (size in REPETITIONS or (size > max(REPETITIONS) and _longest_s(timed, size) <= LONGEST_S))
        mine = _seconds(communicator, exchange, ranks, among, size, repetitions) if exchange is not None and wanted else []
        said = communicator.gather_bytes(json.dumps(mine).encode(), name="allreduce.costs")  # of all groups, which differ in what they time
        if wanted:
            slowest = [[max(each) for each in zip(*ways, strict=True)]
                       for ways in zip(*(json.loads(said[rank]) for rank in ranks), strict=True)]
            for way, seconds in zip(among, zip(*slowest, strict=True), strict=True):
                timed[way][size] = statistics.median(seconds)
    return {way: Cost(seconds) for way, seconds in timed.items()}


def _longest_s(timed: Mapping[Way, Mapping[int, float]], size: int) -> float:
    """Seconds that the bytes of a sum may take."""
    costs = [Cost(each) for each in timed.values()]
    return max(cost.seconds(size) - cost.start_s for cost in costs)


def _seconds(communicator: Communicator, exchange: Exchange, ranks: Ranks, among: Sequence[Way], size: int,
             repetitions: int) -> list[list[float]]:
    """This rank's seconds of a sum of ``size`` bytes: of each repetition, by way. The ways take turns."""
    context, buffer, found = communicator.context, torch.zeros(size // 4), list[list[float]]()
    hosts = [context.hosts[rank] for rank in ranks]
    plans = [way.rounds(ranks.index(context.rank), hosts, len(buffer)) for way in among]
    for _ in range(1 + repetitions):
        found.append([])
        for rounds in plans:
            began = time.monotonic()
            exchange.play(rounds, buffer, until=began + context.deadline_s)
            found[-1].append(time.monotonic() - began)
    return found[1:]
