"""The choice of a way to sum: each way's cost is a line through two measured sums, and the cheapest for a buffer's size is taken."""

from __future__ import annotations

import pytest

from sparkring.pipelines.parallel.allreduce.costs import Cost, Way, cheapest, ways
from sparkring.pipelines.parallel.allreduce.socket_open import describe

KB, MB = 10**3, 10**6
RING, HALVING, DOUBLING = Way("ring"), Way("halving"), Way("doubling")
EIGHT_HOSTS = {DOUBLING: Cost({KB: 1.4e-3, 256 * KB: 35e-3, 4 * MB: 0.75}), HALVING: Cost({KB: 1.6e-3, 256 * KB: 32e-3, 4 * MB: 0.47}),
               RING: Cost({KB: 3.1e-3, 256 * KB: 19e-3, 4 * MB: 0.31})}
"""About as measured on 8 hosts with links of 200 Mb/s (docs/studies/ring-and-tree.md)."""


@pytest.mark.parametrize(("num_bytes", "seconds"), [
    pytest.param(KB, 1e-3, id="as timed"), pytest.param(100, 1e-3, id="fewer: as the fewest"),
    pytest.param(51 * KB, 2e-3, id="between two"), pytest.param(601 * KB, 8e-3, id="on the next line"),
    pytest.param(2101 * KB, 23e-3, id="more: the last line goes on")])
def test_a_cost_follows_lines_between_what_was_timed(num_bytes: int, seconds: float) -> None:
    assert Cost({KB: 1e-3, 101 * KB: 3e-3, 1101 * KB: 13e-3}).seconds(num_bytes) == pytest.approx(seconds)


def test_noise_makes_no_sum_of_more_bytes_shorter() -> None:
    assert Cost({KB: 2e-3, MB: 1e-3}).seconds(100 * MB) == 2e-3


@pytest.mark.parametrize(("num_bytes", "chosen"), [(KB, DOUBLING), (10 * KB, DOUBLING), (100 * KB, RING), (25 * MB, RING)])
def test_size_decides(num_bytes: int, chosen: Way) -> None:
    assert cheapest(EIGHT_HOSTS, num_bytes) == chosen


def test_costs_decide_not_the_kind_of_a_way() -> None:
    """The control of the test above: where halving is fast, it is taken."""
    assert cheapest(EIGHT_HOSTS | {HALVING: Cost({KB: 2e-3, MB: 50e-3})}, 25 * MB) == HALVING


@pytest.mark.parametrize(("num_bytes", "chosen"), [pytest.param(4 * MB, DOUBLING, id="as timed"),
                                                   pytest.param(64 * MB, RING, id="longer than any that was timed")])
def test_a_long_buffer_is_not_sent_whole_because_a_shorter_one_was_quick(num_bytes: int, chosen: Way) -> None:
    """Two hosts: 4 MB took 3.5 ms doubled and 3.8 by a ring, 64 MB 73 and 42."""
    two_hosts = {DOUBLING: Cost({KB: 0.25e-3, 4 * MB: 3.5e-3}), RING: Cost({KB: 0.3e-3, 4 * MB: 3.8e-3})}
    assert cheapest(two_hosts, num_bytes) == chosen


def test_each_value_of_the_key_offers_its_ways() -> None:
    hosts = (0, 0, 1, 1)
    assert ways("ring", hosts, rounds_once=False) == [RING]
    assert {way.between for way in ways("tree", hosts, rounds_once=False)} == {"doubling", "halving"}
    assert {way.two_levels for way in ways("two_level", hosts, rounds_once=False)} == {True}
    assert {way.two_levels for way in ways("auto", hosts, rounds_once=False)} == {False, True}
    assert {way.two_levels for way in ways("two_level", (0, 1), rounds_once=False)} == {False}, "one rank a host has one level"
    assert DOUBLING not in ways("auto", (0, 1), rounds_once=True)


def test_between_two_ranks_halving_is_not_offered_beside_a_ring_which_is_the_same() -> None:
    assert ways("auto", (0, 1), rounds_once=False) == [DOUBLING, RING]
    assert ways("two_level", (0, 0, 1), rounds_once=False) == [Way("doubling", two_levels=True), Way("ring", two_levels=True)]
    assert HALVING in ways("auto", (0, 1, 2), rounds_once=False)
    assert HALVING in ways("tree", (0, 1), rounds_once=False), "there a ring is no choice"


def test_the_choice_is_said_with_the_costs_that_made_it() -> None:
    assert describe([RING, RING, DOUBLING], [2 * MB, MB, KB], 3, EIGHT_HOSTS, wire="bf16") == (
        "3 ranks by sockets, buffers: tree of whole buffers for 1 of up to 0.001 MB (1.4 ms, 5 MB/s), "
        "ring for 2 of up to 2 MB (3.1 ms, 13 MB/s); bf16 with error feedback, not exact")
