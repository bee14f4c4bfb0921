"""The choice of a way to sum: each way's cost is a line through two measured sums, and the cheapest for a buffer's size is taken."""

from __future__ import annotations

import pytest

from sparkring.pipelines.parallel.allreduce.costs import Cost, Way, cheapest, ways
from sparkring.pipelines.parallel.allreduce.socket_open import describe

KB, MB = 10**3, 10**6
RING, HALVING, DOUBLING = Way("ring"), Way("halving"), Way("doubling")
EIGHT_HOSTS = {DOUBLING: Cost(1e-3, 120e-9), HALVING: Cost(2e-3, 116e-9), RING: Cost(3e-3, 74e-9)}
"""As measured on 8 hosts with links of 200 Mb/s (docs/studies/ring-and-tree.md)."""


def test_a_cost_is_the_line_through_two_sums() -> None:
    found = Cost.through({MB: 12e-3, KB: 2.01e-3})
    assert (found.start_s, found.byte_s) == (pytest.approx(2e-3), pytest.approx(1e-8))
    assert found.seconds(10 * MB) == pytest.approx(0.102)


def test_noise_makes_no_cost_negative() -> None:
    assert Cost.through({KB: 2e-3, MB: 1e-3}) == Cost(2e-3, 0.0)
    assert Cost.through({KB: 1e-6, MB: 10e-3}).start_s == 0.0


@pytest.mark.parametrize(("num_bytes", "chosen"), [(KB, DOUBLING), (30 * KB, DOUBLING), (100 * KB, RING), (25 * MB, RING)])
def test_size_decides(num_bytes: int, chosen: Way) -> None:
    assert cheapest(EIGHT_HOSTS, num_bytes) == chosen


def test_costs_decide_not_the_kind_of_a_way() -> None:
    """The control of the test above: where halving is fast, it is taken."""
    assert cheapest(EIGHT_HOSTS | {HALVING: Cost(2e-3, 50e-9)}, 25 * MB) == HALVING


def test_each_value_of_the_key_offers_its_ways() -> None:
    hosts = (0, 0, 1, 1)
    assert ways("ring", hosts, rounds_once=False) == [RING]
    assert {way.between for way in ways("tree", hosts, rounds_once=False)} == {"doubling", "halving"}
    assert {way.two_levels for way in ways("two_level", hosts, rounds_once=False)} == {True}
    assert {way.two_levels for way in ways("auto", hosts, rounds_once=False)} == {False, True}
    assert {way.two_levels for way in ways("two_level", (0, 1), rounds_once=False)} == {False}, "one rank a host has one level"
    assert DOUBLING not in ways("auto", (0, 1), rounds_once=True)


def test_the_choice_is_said_with_the_costs_that_made_it() -> None:
    assert describe([RING, RING, DOUBLING], [2 * MB, MB, KB], 3, EIGHT_HOSTS, wire="bf16") == (
        "3 ranks by sockets, buffers: tree of whole buffers for 1 of up to 0.001 MB (1 ms and 8 MB/s), "
        "ring for 2 of up to 2 MB (3 ms and 14 MB/s); bf16 with error feedback, not exact")
