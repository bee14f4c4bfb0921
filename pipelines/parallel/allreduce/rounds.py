"""Allreduce as data: for each rank the rounds in which it sends a span of its buffer and receives another. Pure.

    ring of 3         each of 3 parts goes round: added on its way, then, as a sum, once more         2 (n - 1) rounds
    halving of 4      0-1 2-3, 0-2 1-3: half of what is left goes to the partner; then back           2 log n rounds
    doubling of 4     the same partners exchange the whole buffer                                     log n rounds, many bytes
    two levels        the ranks of a host give theirs to its first rank; these sum between hosts, and give the sums back

Places count the ranks that sum from 0; ranks of one host are consecutive. Each sum is made once and copied, or, by doubling, made of the
same two values on both sides: all ranks get the same bits. Except by doubling, a rank sends each element once before it is a whole sum, or
makes the sum itself (``error_feedback`` relies on that).

Source: Patarasuk and Yuan 2009 (ring); Thakur, Rabenseifner and Gropp 2005, section 4.5 (halving and doubling, also for numbers of ranks
that are no power of two: of some pairs one rank sums for both).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Elements ``first`` up to ``last``, which it does not hold."""

    first: int
    last: int


NOTHING = Span(0, 0)


class Round(NamedTuple):
    """What a rank does at once; it goes on when both are done."""

    to: int | None
    """Place of the rank that is sent to, if any."""
    sent: Span
    source: int | None
    """Place of the rank that is received from, if any."""
    received: Span
    adds: bool
    """Whether values are parts of a sum, to be added where they arrive; otherwise they are sums, to be copied."""


Rounds = list[Round]
Algorithm = Callable[[int, int, int], Rounds]
"""Makes the rounds of (place, number of ranks, elements of the buffer)."""


def part(length: int, index: int, count: int) -> Span:
    """Part ``index`` of ``count`` of a buffer; parts begin on 64-byte lines, and the last ones may be empty."""
    size = -(-length // (count * 16)) * 16
    return Span(min(index * size, length), min((index + 1) * size, length))


def ring(place: int, count: int, length: int) -> Rounds:
    """Each rank sends to the next one: first parts to be added, then the sums."""
    after, before = (place + 1) % count, (place - 1) % count
    parts = [part(length, (place - turn) % count, count) for turn in range(count)]  # in the order in which this rank sends them
    steps = range(count - 1)
    return [*(Round(after, parts[step], before, parts[step + 1], adds=True) for step in steps),
            *(Round(after, parts[step - 1], before, parts[step], adds=False) for step in steps)]


def halving(place: int, count: int, length: int) -> Rounds:
    """Partners at distance 1, 2, 4 ... each keep one half of what they still hold and send the other; then all goes back."""
    return _by_a_power_of_two(place, count, length, _halve)


def doubling(place: int, count: int, length: int) -> Rounds:
    """Partners at distance 1, 2, 4 ... exchange all that they have."""
    return _by_a_power_of_two(place, count, length, _double)


def two_level(place: int, hosts: Sequence[int], length: int, between: Algorithm) -> Rounds:
    """The first rank of each host sums over its host, then ``between`` hosts, and gives the others the sum.

    Args:
        place: This rank's.
        hosts: Host number of each place, ascending.
        length: Elements of the buffer.
        between: Sums over the first ranks.
    """
    leaders = [hosts.index(host) for host in sorted(set(hosts))]
    leader, whole = hosts.index(hosts[place]), Span(0, length)
    if place != leader:
        return [_send(leader, whole, adds=True), _receive(leader, whole, adds=False)]
    members = [other for other, host in enumerate(hosts) if host == hosts[place] and other != place]
    return [*(_receive(member, whole, adds=True) for member in members),
            *_renumbered(between(leaders.index(place), len(leaders), length), leaders),
            *(_send(member, whole, adds=False) for member in members)]


def _halve(place: int, count: int, length: int) -> Rounds:
    """Halving of a power of two."""
    first, last = 0, count
    down, back = Rounds(), Rounds()
    for mask in _powers_below(count):
        middle, partner = (first + last) // 2, place ^ mask
        lower, upper = (Span(part(length, start, count).first, part(length, end - 1, count).last)
                        for start, end in ((first, middle), (middle, last)))
        kept, given = (upper, lower) if place & mask else (lower, upper)
        first, last = (middle, last) if place & mask else (first, middle)
        down.append(Round(partner, given, partner, kept, adds=True))
        back.append(Round(partner, kept, partner, given, adds=False))
    return down + back[::-1]


def _double(place: int, count: int, length: int) -> Rounds:
    """Doubling of a power of two."""
    whole = Span(0, length)
    return [Round(place ^ mask, whole, place ^ mask, whole, adds=True) for mask in _powers_below(count)]


def _by_a_power_of_two(place: int, count: int, length: int, core: Algorithm) -> Rounds:
    """Of the first pairs the odd rank sums for both, so that a power of two is left for ``core``."""
    size = 1 << (count.bit_length() - 1)
    pairs, whole = count - size, Span(0, length)
    places = [*range(1, 2 * pairs, 2), *range(2 * pairs, count)]
    if place not in places:
        return [_send(place + 1, whole, adds=True), _receive(place + 1, whole, adds=False)]
    rounds = _renumbered(core(places.index(place), size, length), places)
    if place >= 2 * pairs:
        return rounds
    return [_receive(place - 1, whole, adds=True), *rounds, _send(place - 1, whole, adds=False)]


def _powers_below(count: int) -> list[int]:
    return [1 << bit for bit in range(count.bit_length() - 1)]


def _renumbered(rounds: Rounds, places: Sequence[int]) -> Rounds:
    """The rounds of a group in which place i is ``places[i]`` of all."""
    return [each._replace(to=None if each.to is None else places[each.to], source=None if each.source is None else places[each.source])
            for each in rounds]


def _send(to: int, span: Span, *, adds: bool) -> Round:
    return Round(to, span, None, NOTHING, adds)


def _receive(source: int, span: Span, *, adds: bool) -> Round:
    return Round(None, NOTHING, source, span, adds)
