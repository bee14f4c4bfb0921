"""Ranks that train apart: when they ask each other whether all are alive, and what becomes of the answer."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from sparkring.errors import DeadlinePassed
from sparkring.pipelines.training.strategies.relaxed.apart import Apart
from tests.support.training import await_condition


class _Ring:
    """A ring of two; the other rank is at the exchange once ``there``, or is silent."""

    def __init__(self, *, deadline_s: float = 0.4, silent: bool = False) -> None:
        self.context, self.there, self.asked, self._silent = SimpleNamespace(deadline_s=deadline_s), False, 0, silent

    def agree(self, *, mine: bool, name: str) -> bool:
        self.asked += 1
        if self._silent:
            raise DeadlinePassed(name)
        return mine and self.there


def _apart(ring: Any, *, asks: bool = True) -> Apart:
    return Apart(ring, first_step=0, asks=asks)


def test_ranks_ask_each_other_until_all_are_there() -> None:
    ring = _Ring()
    apart = _apart(ring)
    await_condition(lambda: ring.asked > 2, "several rounds while this rank computes")
    apart.check()
    ring.there = True
    apart.meet()
    assert ring.asked > 3, "at last this rank is there, too"


def test_a_silent_rank_ends_the_steps_of_the_others_before_they_come_to_the_exchange() -> None:
    apart = _apart(_Ring(silent=True))

    def raised() -> bool:
        try:
            apart.check()
        except DeadlinePassed:
            return True
        return False

    await_condition(raised, "the end of the other rank")
    with pytest.raises(DeadlinePassed):
        apart.meet()


def test_nobody_asks_where_no_rank_needed_long_the_last_time() -> None:
    ring = _Ring()
    apart = _apart(ring, asks=False)
    apart.check()
    apart.meet()
    assert ring.asked == 0
    assert not _apart(_Ring(deadline_s=1000.0), asks=False).is_long
    began = _apart(_Ring(deadline_s=0.01), asks=False)
    time.sleep(0.01)  # longer than an eighth of the deadline
    assert began.is_long
