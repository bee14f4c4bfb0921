"""The choice of a way to sum: few messages for few bytes, few bytes for many, and the ranks of a host first."""

from __future__ import annotations

import pytest

from sparkring.conf.schema import RingConfig
from sparkring.pipelines.parallel.allreduce.costs import LinkCost, Way, cheapest, ways
from sparkring.pipelines.parallel.allreduce.link_cost import SIZES, fitted
from sparkring.pipelines.parallel.allreduce.socket_open import describe

LINK = LinkCost(message_s=1e-4, byte_s=1e-8, add_byte_s=1e-10)
KB, MB = 10**3, 10**6


@pytest.mark.parametrize(("way", "hosts", "seconds"), [
    pytest.param(Way("ring"), (0, 1, 2, 3), 6 * (1e-4 + 2.5e-3) + 3 * 2.5e-5, id="a ring of 4: 2 x 3 quarters"),
    pytest.param(Way("halving"), (0, 1, 2, 3), 2 * (1e-4 + 5e-3) + 2 * (1e-4 + 2.5e-3) + 7.5e-5, id="halves and quarters, twice"),
    pytest.param(Way("doubling"), (0, 1, 2, 3), 2 * (1e-4 + 1e-2 + 2e-4), id="all, twice"),
    pytest.param(Way("halving"), (0, 1, 2), 2 * (1e-4 + 1e-2) + 1e-4 + 2 * (1e-4 + 5e-3) + 5e-5, id="of 3, one pair sums first"),
    pytest.param(Way("halving"), (0, 0, 1, 1), 2 * (1e-4 + 5e-3) + 2 * (1e-4 + 2 * 2.5e-3) + 7.5e-5, id="2 ranks share a link"),
    pytest.param(Way("ring", two_levels=True), (0, 0, 1, 1), 2 * (1e-4 + 1e-2) + 1e-4 + 2 * (1e-4 + 5e-3) + 5e-5, id="in the host first")])
def test_a_megabyte_costs_what_its_rounds_cost(way: Way, hosts: tuple[int, ...], seconds: float) -> None:
    assert way.seconds(MB, hosts, LINK) == pytest.approx(seconds)


@pytest.mark.parametrize(("hosts", "num_bytes", "chosen"), [
    pytest.param((0, 1), KB, "doubling", id="2 hosts, few bytes"), pytest.param((0, 1), 10 * MB, "halving", id="2 hosts, many"),
    pytest.param((0, 1, 2), KB, "doubling", id="3 hosts: 3 messages, a ring has 4"),
    pytest.param(tuple(range(8)), KB, "doubling", id="8 hosts, few bytes"),
    pytest.param(tuple(range(8)), 10 * MB, "halving", id="8 hosts, many"),
    pytest.param(tuple(range(7)), KB, "doubling", id="7 hosts, few bytes"), pytest.param(tuple(range(7)), 10 * MB, "ring", id="7, many")])
def test_size_and_hosts_decide(hosts: tuple[int, ...], num_bytes: int, chosen: str) -> None:
    assert cheapest(ways("auto", hosts, rounds_once=False), num_bytes, hosts, LINK).between == chosen


def test_each_value_of_the_key_offers_its_ways() -> None:
    hosts = (0, 0, 1, 1)
    assert ways("ring", hosts, rounds_once=False) == [Way("ring")]
    assert {way.between for way in ways("tree", hosts, rounds_once=False)} == {"doubling", "halving"}
    assert {way.two_levels for way in ways("two_level", hosts, rounds_once=False)} == {True}
    assert {way.two_levels for way in ways("auto", hosts, rounds_once=False)} == {False, True}
    assert {way.two_levels for way in ways("two_level", (0, 1), rounds_once=False)} == {False}, "one rank a host has one level"


def test_the_link_s_cost_is_found_again_in_the_seconds_of_rings() -> None:
    seconds = [Way("ring").seconds(size, (0, 1, 2), LINK) for size in SIZES]
    found = fitted(seconds, LINK.add_byte_s, 3)
    assert (found.message_s, found.byte_s) == (pytest.approx(LINK.message_s), pytest.approx(LINK.byte_s))


def test_the_choice_is_said_with_the_cost_that_made_it() -> None:
    chosen = [Way("ring"), Way("ring"), Way("doubling")]
    assert describe(chosen, [2 * MB, MB, KB], 3, LINK, RingConfig(allreduce="auto", wire="bf16")) == (
        "3 ranks by sockets, buffers: tree of whole buffers for 1 of up to 0.001 MB, ring for 2 of up to 2 MB "
        "(0.1 ms a message, 100 MB/s); bf16 with error feedback, not exact")
