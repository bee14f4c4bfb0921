"""Measures what each way to sum costs, by sums of the ranks that will sum; every rank gets the same numbers."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence

import torch

from sparkring.pipelines.parallel.allreduce.costs import Cost, Way
from sparkring.pipelines.parallel.allreduce.exchange import Exchange
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.mesh import Ranks

REPETITIONS = {1 << 10: 15, 1 << 15: 15, 1 << 20: 7, 1 << 23: 3}
"""By the bytes of a sum, how often each way is timed, after one to warm up."""
ALWAYS = 2
"""So many of these sizes are timed in any case, to make a line."""
LONGEST_S = 0.1
"""A size is not timed if a way would take longer: on so slow a link the bytes decide, and the sizes before tell what they cost."""


def measure_costs(communicator: Communicator, exchange: Exchange | None, ranks: Ranks, among: Sequence[Way], *,
                  largest: int) -> dict[Way, Cost]:
    """The costs of some ways to sum between ``ranks``: of each size the median of the slowest rank's seconds. Every rank calls this.

    Args:
        communicator: The joined ring.
        exchange: This rank's connections; None if it does not sum.
        ranks: Those that sum together.
        among: The ways.
        largest: Bytes of the largest buffer; larger sums are not timed.
    Returns:
        By way; nothing if one rank sums alone.
    """
    timed: dict[Way, dict[int, float]] = {way: {} for way in among}
    for number, size in enumerate(REPETITIONS):
        wanted = number < ALWAYS or (size <= largest and max(Cost(each).seconds(size) for each in timed.values()) <= LONGEST_S)
        mine = _seconds(communicator, exchange, ranks, among, size) if exchange is not None and wanted else []
        said = communicator.gather_bytes(json.dumps(mine).encode(), name="allreduce.costs")  # of all groups, which differ in what they time
        if len(ranks) > 1 and wanted:
            slowest = [[max(each) for each in zip(*ways, strict=True)]
                       for ways in zip(*(json.loads(said[rank]) for rank in ranks), strict=True)]
            for way, seconds in zip(among, zip(*slowest, strict=True), strict=True):
                timed[way][size] = statistics.median(seconds)
    return {way: Cost(seconds) for way, seconds in timed.items()} if len(ranks) > 1 else {}


def _seconds(communicator: Communicator, exchange: Exchange, ranks: Ranks, among: Sequence[Way], size: int) -> list[list[float]]:
    """This rank's seconds of a sum of ``size`` bytes: of each repetition, by way. The ways take turns."""
    context, buffer, found = communicator.context, torch.zeros(size // 4), list[list[float]]()
    hosts = [context.hosts[rank] for rank in ranks]
    plans = [way.rounds(ranks.index(context.rank), hosts, len(buffer)) for way in among]
    for _ in range(1 + REPETITIONS[size]):
        found.append([])
        for rounds in plans:
            began = time.monotonic()
            exchange.play(rounds, buffer, until=began + context.deadline_s)
            found[-1].append(time.monotonic() - began)
    return found[1:]
