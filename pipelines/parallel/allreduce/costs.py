"""The cheapest way to sum a buffer between ranks, by its size, the hosts and the cost of a message between them. Pure.

    seconds a message = message_s + byte_s x bytes          and add_byte_s for each byte that is added or copied beside it

Few bytes: the way with the fewest messages, doubling. Many: one that sends each byte twice, ring or halving. These differ where the number
of ranks is no power of two (halving first sends whole buffers) and where ranks share a host (its link carries all their messages at once).

Source: Thakur, Rabenseifner and Gropp 2005, sections 2 and 4.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sparkring.conf.schema import Allreduce
from sparkring.pipelines.parallel.allreduce.rounds import Algorithm, Rounds, doubling, halving, ring, two_level

FlatName = Literal["ring", "halving", "doubling"]
ALGORITHMS: Mapping[FlatName, Algorithm] = {"ring": ring, "halving": halving, "doubling": doubling}
WORDS: Mapping[FlatName, str] = {"ring": "ring", "halving": "tree by halves", "doubling": "tree of whole buffers"}


@dataclass(frozen=True)
class LinkCost:
    """Seconds of messages between two ranks on two hosts."""

    message_s: float
    """Of a message without bytes."""
    byte_s: float
    """Of each byte on the link."""
    add_byte_s: float
    """Of each byte that a rank adds to its own, or copies."""

    def messages(self, count: int, num_bytes: float, *, sharing: int = 1) -> float:
        """Of so many messages one after the other, each of ``num_bytes``, while ``sharing`` ranks of a host send as many."""
        return count * (self.message_s + sharing * num_bytes * self.byte_s)


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

    def seconds(self, num_bytes: float, hosts: Sequence[int], link: LinkCost) -> float:
        """Predicted seconds.

        Args:
            num_bytes: Of the buffer.
            hosts: Host number of each place, ascending.
            link: The cost of a message, taken for those within a host, too.
        """
        most = max(Counter(hosts).values())
        if not self.two_levels:
            return _flat_s(self.between, num_bytes, len(hosts), link, per_host=most)
        within = (most - 1) * (link.messages(2, num_bytes) + num_bytes * link.add_byte_s)
        return within + _flat_s(self.between, num_bytes, len(set(hosts)), link, per_host=1)


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
    return [Way(name, two_levels) for two_levels in levels for name in names]


def cheapest(among: Sequence[Way], num_bytes: int, hosts: Sequence[int], link: LinkCost) -> Way:
    """The way of the fewest predicted seconds; of equals the first."""
    return min(among, key=lambda way: way.seconds(num_bytes, hosts, link))


def _flat_s(name: FlatName, num_bytes: float, count: int, link: LinkCost, *, per_host: int) -> float:
    """Seconds of an algorithm over ``count`` ranks, up to ``per_host`` of them on one host."""
    if name == "ring":
        share = num_bytes / count
        return link.messages(2 * (count - 1), share) + (count - 1) * share * link.add_byte_s
    size, whole = 1 << (count.bit_length() - 1), name == "doubling"
    seconds = link.messages(2, num_bytes) + num_bytes * link.add_byte_s if count > size else 0.0
    for level in range(size.bit_length() - 1):
        sharing, part = per_host if 1 << level >= per_host else 1, num_bytes if whole else num_bytes / 2 ** (level + 1)
        added = 2 * part if whole else part  # by doubling what is sent is copied first
        seconds += link.messages(1 if whole else 2, part, sharing=sharing) + added * link.add_byte_s
    return seconds
