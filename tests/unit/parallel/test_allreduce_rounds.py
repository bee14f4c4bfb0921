"""Ring, tree and two levels as rounds: every rank gets the sum, the same bits, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sparkring.pipelines.parallel.allreduce.rounds import Rounds, Span, doubling, halving, part, ring, two_level
from tests.support.allreduce_play import play, ramp

FLAT = {"ring": ring, "halving": halving, "doubling": doubling}
LENGTH = 333


def _of_all(make: Callable[[int], Rounds], count: int) -> list[Rounds]:
    return [make(place) for place in range(count)]


def _sums(schedules: list[Rounds], *, without_rows: int | None = None) -> None:
    """All ranks get the sum of their values; the values of one of them may be zeros."""
    values = [ramp(place, LENGTH) * (place != without_rows) for place in range(len(schedules))]
    found = play(schedules, values)
    assert all(torch.equal(each, found[0]) for each in found), "the same bits"
    assert (found[0] - torch.stack(values).sum(dim=0)).abs().max() < 1e-13


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("count", range(1, 10))
def test_each_of_1_to_9_ranks_gets_the_same_sum(name: str, count: int) -> None:
    _sums(_of_all(lambda place: FLAT[name](place, count, LENGTH), count))
    _sums(_of_all(lambda place: FLAT[name](place, count, LENGTH), count), without_rows=count - 1)


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("hosts", [(0,), (0, 0, 0), (0, 1), (0, 0, 1), (0, 1, 1, 2), (0, 0, 1, 1, 2, 2, 3, 3, 3)], ids=str)
def test_ranks_of_1_to_4_hosts_get_it_by_two_levels(name: str, hosts: tuple[int, ...]) -> None:
    _sums(_of_all(lambda place: two_level(place, hosts, LENGTH, FLAT[name]), len(hosts)), without_rows=0)


@pytest.mark.parametrize("length", [0, 1, 16, 17])
def test_a_buffer_may_have_fewer_elements_than_ranks(length: int) -> None:
    for make in FLAT.values():
        values = [torch.full((length,), 1.0 + place) for place in range(5)]
        assert all(each.tolist() == [15.0] * length for each in play([make(place, 5, length) for place in range(5)], values))


def test_rounds_are_as_drawn() -> None:
    parts = [part(48, index, 3) for index in range(3)]
    assert parts == [Span(0, 16), Span(16, 32), Span(32, 48)]
    assert [(each.to, parts.index(each.sent), each.source, parts.index(each.received), each.adds) for each in ring(1, 3, 48)] == [
        (2, 1, 0, 0, True), (2, 0, 0, 2, True), (2, 2, 0, 1, False), (2, 1, 0, 0, False)]
    assert [(each.to, each.sent, each.received, each.adds) for each in halving(2, 4, 64)] == [
        (3, Span(32, 64), Span(0, 32), True), (0, Span(0, 16), Span(16, 32), True),
        (0, Span(16, 32), Span(0, 16), False), (3, Span(0, 32), Span(32, 64), False)]
    assert [(each.to, each.source) for each in doubling(1, 5, 8)] == [(None, 0), (2, 2), (3, 3), (0, None)], "1 sums for 0, too"


@pytest.mark.parametrize(("make", "rounds", "sent"), [
    pytest.param(ring, 6, 96, id="a ring of 4: 2 x 3 messages of a quarter"),
    pytest.param(halving, 4, 96, id="halving: 2 x 2 messages, as many bytes"),
    pytest.param(doubling, 2, 128, id="doubling: 2 messages of all")])
def test_a_tree_sends_fewer_messages_and_doubling_more_bytes(make: Callable[[int, int, int], Rounds], rounds: int, sent: int) -> None:
    for place in range(4):
        mine = make(place, 4, 64)
        assert (len(mine), sum(each.sent.last - each.sent.first for each in mine)) == (rounds, sent)


def _rounded_once(mine: Rounds, length: int) -> bool:
    """Whether the elements that a rank sends as parts, and those of its first sum, are all elements, each once."""
    spans = [each.sent for each in mine if each.adds and each.to is not None]
    spans += [each.sent for each in mine if not each.adds and each.to is not None][:1]
    return sorted(element for span in spans for element in range(*span)) == list(range(length))


@pytest.mark.parametrize("count", range(2, 10))
def test_except_by_doubling_a_rank_sends_each_element_once_or_makes_its_sum(count: int) -> None:
    for place in range(count):
        assert _rounded_once(ring(place, count, LENGTH), LENGTH)
        assert _rounded_once(halving(place, count, LENGTH), LENGTH)
        hosts = tuple(index * 4 // count for index in range(count))
        assert _rounded_once(two_level(place, hosts, LENGTH, ring), LENGTH)
    assert not _rounded_once(doubling(0, 4, LENGTH), LENGTH), "the control"


def test_a_rank_that_sends_to_the_wrong_one_is_found_waiting() -> None:
    schedules = [ring(place, 3, 48) for place in range(3)]
    schedules[1][0] = schedules[1][0]._replace(to=0)
    with pytest.raises(AssertionError, match="wait for each other"):
        play(schedules, [ramp(place, 48) for place in range(3)])
