"""A year of real flights, replayed month by month: each night retrains on rolled splits, and the champion is not worse for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.year import FIRST_MONTHS, LAST_MONTH, draw, replay
from tests.support.spark_sessions import end_context

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]


@pytest.fixture(autouse=True)
def _context_of_its_own() -> Iterator[None]:
    """The nights' session has two slots; it would be that of the next module in this process."""
    yield
    end_context()


def test_a_retrained_champion_predicts_the_year_s_latest_flights_better_than_the_first_model(tmp_path: Path) -> None:
    months = list(replay(tmp_path))
    assert [month.month for month in months] == list(range(FIRST_MONTHS[-1], LAST_MONTH + 1))
    assert months[0].outcome == "promoted"
    assert {month.outcome for month in months} <= {"promoted", "kept"}
    assert all(after.rows > before.rows for before, after in pairwise(months)), "train rows grow as they age"
    assert all(month.tested > 5000 for month in months), "fifteen days of flights"
    later = months[1:]
    assert sum(month.auc for month in later) / len(later) > sum(month.auc_first for month in later) / len(later) + 0.005
    assert months[0].auc == months[0].auc_first
    draw(months, tmp_path / "year.svg")
    assert (tmp_path / "year.svg").read_text(encoding="utf-8").count("<path") > 4
