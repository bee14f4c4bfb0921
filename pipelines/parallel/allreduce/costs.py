"""The cheapest way to sum a buffer between ranks, by its size and what the ways cost. Pure.

    seconds of a sum         lines between the sizes at which a way was timed (measured_costs.py), the last one extended

Few bytes: the way with the fewest messages, doubling. Many: one that sends each byte twice, ring or halving. What was timed decides, except
that a buffer longer than any that was timed is never doubled: between two ranks doubling sends no more than the others and looks as fast up
to some MB, but it copies what it sends and adds twice as many values: 64 MB took 1.8 times as long. How the others compare depends on
the number of ranks (where it is no power of two, halving first sends whole buffers), on ranks that share a host's link, and on the network:
halving has a new partner in each round, and a link that several send to at once drops packets.

Source: Thakur, Rabenseifner and Gropp 2005, sections 2 and 4.5 (the ways; they choose by predicted costs).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sparkring.conf.schema import Allreduce
from sparkring.pipelines.parallel.allreduce.rounds import Algorithm, Rounds, doubling, halving, ring, two_level

FlatName = Literal["ring", "halving", "doubling"]
ALGORITHMS: Mapping[FlatName, Algorithm] = {"ring": ring, "halving": halving, "doubling": doubling}
WORDS: Mapping[FlatName, str] = {"ring": "ring", "halving": "tree by halves", "doubling": "tree of whole buffers"}


@dataclass(frozen=True)
class Way:
    """One way to sum a buffer."""

    between: FlatName
    """How all ranks sum; with two levels, how the first ranks of the hosts do."""
    two_levels: bool = False
    """Whether the ranks of each host sum first."""

    def __str__(self) -> str:
        return WORDS[self.between] + (" of hosts' first ranks" if self.two_levels else "")

    def rounds(self, place: int, hosts: Sequence[int], length: int) -> Rounds:
        """The rounds of the rank at ``place`` (``rounds.py``)."""
        between = ALGORITHMS[self.between]
        return two_level(place, hosts, length, between) if self.two_levels else between(place, len(hosts), length)


@dataclass(frozen=True)
class Cost:
    """What a way costs."""

    timed: Mapping[int, float]
    """By bytes of a sum, ascending, its seconds; of two sizes at least."""

    @property
    def start_s(self) -> float:
        """Seconds of a sum of few bytes."""
        return next(iter(self.timed.values()))

    @property
    def bytes_s(self) -> float:
        """Bytes a second of the largest sum."""
        num_bytes, seconds = list(self.timed.items())[-1]
        return num_bytes / seconds

    def seconds(self, num_bytes: float) -> float:
        """Of a sum."""
        points = list(self.timed.items())
        place = min(max(1, bisect_left(list(self.timed), num_bytes)), len(points) - 1)
        (small, few_s), (large, many_s) = points[place - 1:place + 1]
        return few_s + max(0.0, many_s - few_s) * max(0.0, (num_bytes - small) / (large - small))


def ways(allreduce: Allreduce, hosts: Sequence[int], *, rounds_once: bool) -> list[Way]:
    """The ways among which ``train.ring.allreduce`` lets costs decide.

    Args:
        allreduce: Its value, but ``horovod``.
        hosts: Host number of each rank that sums, ascending.
        rounds_once: Whether values are rounded when they are sent, which doubling would do again and again.
    """
    flat: dict[Allreduce, tuple[FlatName, ...]] = {"ring": ("ring",), "tree": ("doubling", "halving")}
    names = [name for name in flat.get(allreduce, ("doubling", "halving", "ring")) if not (rounds_once and name == "doubling")]
    several = 1 < len(set(hosts)) < len(hosts)
    levels = {"ring": [False], "tree": [False], "two_level": [several]}.get(allreduce, [False, True] if several else [False])
    return [Way(name, two_levels) for two_levels in levels for name in _different(names, len(set(hosts)) if two_levels else len(hosts))]


def _different(names: Sequence[FlatName], count: int) -> Sequence[FlatName]:
    """Between two ranks a ring is halving: each sends one half and then the other."""
    return [name for name in names if not (name == "halving" and "ring" in names and count == 2)]


def cheapest(costs: Mapping[Way, Cost], num_bytes: int) -> Way:
    """The way of the fewest seconds; of equals the first. Doubling only for sizes up to the largest that was timed."""
    timed = max(size for cost in costs.values() for size in cost.timed)
    among = [way for way in costs if way.between != "doubling" or num_bytes <= timed]
    return min(among, key=lambda way: costs[way].seconds(num_bytes))
