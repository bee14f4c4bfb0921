"""What ways to sum cost is timed in several passes, so that a moment of other work on a host does not decide which way a ring takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from sparkring.pipelines.parallel.allreduce import measured_costs
from sparkring.pipelines.parallel.allreduce.costs import Way, cheapest
from sparkring.pipelines.parallel.allreduce.exchange import Exchange
from sparkring.pipelines.parallel.allreduce.measured_costs import REPETITIONS, Series
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from tests.support import seams

RANKS, FASTER, SLOWER, DISTURBED = (0, 1), Way("doubling"), Way("ring"), 1 << 18


class _Gathers:
    """Two ranks that say the same."""

    def gather_bytes(self, mine: bytes, *, name: str) -> list[bytes]:
        assert name
        return [mine] * len(RANKS)


def _choice(monkeypatch: pytest.MonkeyPatch, *, passes: int) -> Way:
    """The way for 256 KB, which other work makes ten times as slow for the faster way, the first time that this size is timed."""
    asked: list[int] = []

    def seconds(_communicator: object, _exchange: object, _ranks: object, among: Sequence[Way], size: int,
                series: Series) -> list[list[float]]:
        burst = 10.0 if size == DISTURBED and size not in asked else 1.0
        asked.append(size)
        return [[1e-3 * burst if way == FASTER else 1.5e-3 for way in among]] * series.rounds

    monkeypatch.setattr(seams.MEASURED_COSTS_SECONDS, seconds)
    monkeypatch.setattr(seams.MEASURED_COSTS_PASSES, passes)
    costs = measured_costs.measure_costs(cast("Communicator", _Gathers()), cast("Exchange", object()), RANKS, [FASTER, SLOWER],
                                         largest=DISTURBED + 4)
    assert asked == list(REPETITIONS) * passes
    return cheapest(costs, DISTURBED)


def test_other_work_in_one_pass_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _choice(monkeypatch, passes=measured_costs.PASSES) == FASTER


def test_control_of_one_pass_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _choice(monkeypatch, passes=1) == SLOWER
