"""Measures what each way to sum costs, by sums of the ranks that will sum; every rank gets the same numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import torch

from sparkring.pipelines.parallel.allreduce.costs import Cost, Way
from sparkring.pipelines.parallel.allreduce.exchange import Exchange
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.mesh import Ranks

REPETITIONS = {1 << 10: 9, 1 << 20: 3}
"""By the bytes of a sum, how often it is timed, after one to warm up."""


def measure_costs(communicator: Communicator, exchange: Exchange | None, ranks: Ranks, among: Sequence[Way]) -> dict[Way, Cost]:
    """The costs of some ways to sum between ``ranks``: of each size the slowest rank's median. Every rank of the ring calls this.

    Args:
        communicator: The joined ring.
        exchange: This rank's connections; None if it does not sum.
        ranks: Those that sum together.
        among: The ways.
    Returns:
        By way; nothing if one rank sums alone.
    """
    context = communicator.context
    hosts = [context.hosts[rank] for rank in ranks]
    timed = [(way, size) for way in among for size in REPETITIONS]
    mine = [] if exchange is None else [
        _median_s(exchange, way, ranks.index(context.rank), hosts, size, context.deadline_s) for way, size in timed]
    said = communicator.gather_bytes(json.dumps(mine).encode(), name="allreduce.costs")  # other groups may time other ways
    if len(ranks) == 1:
        return {}
    slowest = [max(each) for each in zip(*(json.loads(said[rank]) for rank in ranks), strict=True)]
    seconds = dict(zip(timed, slowest, strict=True))
    return {way: Cost.through({size: seconds[way, size] for size in REPETITIONS}) for way in among}


def _median_s(exchange: Exchange, way: Way, place: int, hosts: Sequence[int], size: int, deadline_s: float) -> float:
    """Seconds of a sum of ``size`` bytes on this rank."""
    buffer, taken = torch.zeros(size // 4), list[float]()
    rounds = way.rounds(place, hosts, len(buffer))
    for _ in range(1 + REPETITIONS[size]):
        began = time.monotonic()
        exchange.play(rounds, buffer, until=began + deadline_s)
        taken.append(time.monotonic() - began)
    return sorted(taken[1:])[REPETITIONS[size] // 2]
