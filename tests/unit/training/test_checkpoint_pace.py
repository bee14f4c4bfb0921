"""When checkpoints are begun, played step by step: what a failure would cost at the worst moment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from sparkring.pipelines.training.checkpoints.pace import Pace, lead
from tests.support import seams


def play(every: int, takes: Iterator[int], *, steps: int = 2000, waits: bool = True) -> tuple[int, list[int], int]:
    """Train, with checkpoints of which each takes so many steps to write.

    Returns:
        The most steps that were ever done beyond the last commit, after which steps checkpoints were begun, and how often was waited.
    """
    pace, begun, worst, waited = Pace(every), list[int](), 0, 0
    committed, writing, left, held = 0, -1, 0, False
    for done in range(1, steps + 1):
        due = writing < 0 and pace.due(done)  # decided before the step
        worst, left = max(worst, done - committed), left - 1
        if writing < 0 and due:
            pace.begun(done)
            begun.append(done)
            writing, left, held = done, next(takes), False
        if writing >= 0 and left > 0 and waits and pace.holds(done):
            left, held, waited = 0, True, waited + 1
        if writing >= 0 and left <= 0:
            pace.committed(writing, steps=done - writing, held=held)
            committed, writing = writing, -1
    return worst, begun, waited


def always(steps: int) -> Iterator[int]:
    while True:
        yield steps


def jittery(seed: int) -> Iterator[int]:
    drawn = random.Random(seed)
    while True:
        yield drawn.choice([1, 2, 3, 5, 8, 40])


@pytest.mark.parametrize(("every", "takes"), [(100, 1), (100, 12), (100, 40), (10, 3), (4, 1)])
def test_a_failure_costs_no_more_steps_than_asked_for_and_nobody_waits(every: int, takes: int) -> None:
    worst, begun, waited = play(every, always(takes))
    assert worst <= every
    assert waited == 0
    assert begun[0] == every - every // 2  # nothing is known of the first one
    assert {after - before for before, after in pairwise(begun[1:])} == {every - min(takes + 1, every // 2)}


def test_control_begun_on_the_dot_a_failure_costs_what_writing_takes_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.PACE_LEAD, lambda *_: 0)
    assert play(100, always(12), waits=False)[0] == 112


@pytest.mark.parametrize("seed", range(5))
def test_one_that_takes_longer_than_those_before_is_waited_for(seed: int) -> None:
    worst, _, waited = play(100, jittery(seed))
    assert worst <= 100
    assert waited > 0
    assert play(100, jittery(seed), waits=False)[0] > 100  # the control


def test_what_takes_more_than_half_the_interval_follows_one_on_another_and_is_not_waited_for() -> None:
    worst, begun, waited = play(20, always(30))
    assert waited <= 1  # the first, of which nothing was known
    assert {after - before for before, after in pairwise(begun[2:])} <= {30, 31}
    assert 20 < worst <= 62


def test_after_one_that_failed_nothing_is_waited_for_until_there_is_one_again() -> None:
    pace = Pace(10)
    pace.begun(5)
    assert not pace.holds(9)
    assert pace.holds(10)
    pace.failed()
    assert not pace.holds(10)
    assert not pace.due(9)
    assert pace.due(10)  # half an interval later, and not at once: storage has failed
    pace.begun(10)
    pace.committed(10, steps=1, held=False)
    assert pace.holds(20)


def test_it_counts_from_where_the_run_goes_on() -> None:
    pace = Pace(100, start=1234)
    assert not pace.due(1283)
    assert pace.due(1284)


@pytest.mark.parametrize(("every", "recent", "expected"), [(200, [], 100), (200, [0, 3], 4), (1, [], 0), (10, [30], 31)])
def test_the_lead_is_the_longest_of_the_last_ones_and_a_step(every: int, recent: list[int], expected: int) -> None:
    assert lead(every, recent) == expected


@pytest.mark.parametrize(("takes", "cost"), [([], 100), ([10, 20], 100), ([49], 100), ([60], 120), ([300], 600)])
def test_what_a_failure_may_cost_is_told(takes: list[int], cost: int) -> None:
    pace = Pace(100)
    for steps in takes:
        pace.committed(0, steps=steps, held=False)
    assert pace.cost == cost
