"""Measures what each way to sum costs, by sums of the ranks that will sum; every rank gets the same numbers."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from sparkring.pipelines.parallel.allreduce.costs import Cost, Way
from sparkring.pipelines.parallel.allreduce.exchange import Exchange
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.mesh import Ranks


class Series(NamedTuple):
    """How often a size is timed in a pass."""

    rounds: int
    """After one to warm up; the ways take turns."""
    in_a_row: int
    """Sums that a way makes in its turn: where ranks wait for a core, one of 256 KB takes 0.5 to 2.5 ms, and the mean is what counts."""


PASSES = 3
"""Each times all sizes, so that other work of half a second on a host disturbs a part of each size's times, not all times of one."""
REPETITIONS = {1 << 10: Series(3, 8), 1 << 15: Series(3, 8), 1 << 18: Series(3, 4), 1 << 20: Series(2, 2)}
"""By the bytes of a sum. No gap is wide: between 32 KB and 1 MB lines cross. Fewer bytes than 1 MB fit into buffers on the way and tell
nothing of a link."""
MOST_BYTES, OF_LARGEST = 1 << 23, Series(2, 1)
"""The largest buffer, cut to so many bytes, is timed, too, if it has 2 MB: most bytes of a job travel in buffers of that size."""
LONGEST_S, OF_LONG = 0.1, Series(1, 1)
"""A size whose turn would take longer is timed less: a slow link varies little. The largest buffer is not timed then."""


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
    found: dict[tuple[Way, int], list[float]] = {}
    own = min(largest, MOST_BYTES) // 4 * 4
    for size, series in PASSES * [*REPETITIONS.items(), (own, OF_LARGEST)]:
        is_long = bool(timed) and _longest_s(timed, size) * series.in_a_row > LONGEST_S
        wanted = timed and (size in REPETITIONS or (size >= 2 * max(REPETITIONS) and not is_long))
        mine = _seconds(communicator, exchange, ranks, among, size, OF_LONG if is_long else series) if exchange and wanted else []
        said = communicator.gather_bytes(json.dumps(mine).encode(), name="allreduce.costs")  # of all groups, which differ in what they time
        if wanted:
            slowest = [[max(each) for each in zip(*ways, strict=True)]
                       for ways in zip(*(json.loads(said[rank]) for rank in ranks), strict=True)]
            for way, seconds in zip(among, zip(*slowest, strict=True), strict=True):
                found.setdefault((way, size), []).extend(seconds)
                timed[way][size] = statistics.median(found[way, size])
    return {way: Cost(seconds) for way, seconds in timed.items()}


def _longest_s(timed: Mapping[Way, Mapping[int, float]], size: int) -> float:
    """Seconds that the bytes of a sum may take; 0 before two sizes are timed."""
    costs = [Cost(each) for each in timed.values() if len(each) > 1]
    return max((cost.seconds(size) - cost.start_s for cost in costs), default=0.0)


def _seconds(communicator: Communicator, exchange: Exchange, ranks: Ranks, among: Sequence[Way], size: int,
             series: Series) -> list[list[float]]:
    """This rank's seconds of a sum of ``size`` bytes: of each round, by way."""
    context, buffer, found = communicator.context, torch.zeros(size // 4), list[list[float]]()
    hosts = [context.hosts[rank] for rank in ranks]
    plans = [way.rounds(ranks.index(context.rank), hosts, len(buffer)) for way in among]
    for _ in range(1 + series.rounds):
        found.append([])
        for rounds in plans:
            began = time.monotonic()
            for _ in range(series.in_a_row):
                exchange.play(rounds, buffer, until=time.monotonic() + context.deadline_s)
            found[-1].append((time.monotonic() - began) / series.in_a_row)
    return found[1:]
