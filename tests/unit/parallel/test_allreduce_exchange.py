"""Rounds over real connections: what the simulator gets, through sockets that hold little, and over as soon as a rank is."""

from __future__ import annotations

import time

import pytest
import torch

from sparkring.errors import DeadlinePassed, RingEnded
from sparkring.pipelines.parallel.allreduce.incoming import PIECE_BYTES
from sparkring.pipelines.parallel.allreduce.rounds import doubling, halving, ring, two_level
from tests.support.allreduce_play import exchange_all, exchanges, play, ramp

LONG = 2 * PIECE_BYTES // 8 + 17
LITTLE = 1 << 15
"""Bytes that a socket holds; Linux doubles it."""
HOSTS = (0, 0, 1, 2, 2)


@pytest.mark.parametrize("count", [2, 5])
def test_connections_get_the_simulator_s_bits_whatever_is_cut(count: int) -> None:
    with exchanges(count, buffer_bytes=LITTLE if count == 2 else None) as ranks:
        for length in (0, 1, 33, LONG):
            values = [ramp(place, length) for place in range(count)]
            for make in (ring, halving, doubling):
                schedules = [make(place, count, length) for place in range(count)]
                found, expected = exchange_all(ranks, schedules, values), play(schedules, values)
                assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), (make, length)


def test_two_levels_pass_through_connections_too() -> None:
    values = [ramp(place, LONG) for place in range(len(HOSTS))]
    schedules = [two_level(place, HOSTS, LONG, ring) for place in range(len(HOSTS))]
    with exchanges(len(HOSTS)) as ranks:
        found = exchange_all(ranks, schedules, values)
    assert all(torch.equal(one, other) for one, other in zip(found, play(schedules, values), strict=True))


def test_a_rank_that_ends_is_noticed_at_once_and_named() -> None:
    with exchanges(3) as ranks:
        ranks[1].close()
        with pytest.raises(RingEnded, match="rank 1 has ended, it closed its end"):
            ranks[2].play(ring(2, 3, 100), torch.zeros(100), until=time.monotonic() + 20)


def test_a_rank_that_is_silent_is_named_at_the_deadline() -> None:
    with exchanges(3) as ranks, pytest.raises(DeadlinePassed, match="waited for rank 1 until the deadline") as raised:
        ranks[2].play(ring(2, 3, 100), torch.zeros(100), until=time.monotonic() + 0.05)
    assert raised.value.awaited == (1,)
