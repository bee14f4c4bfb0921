"""When a retraining is due: each trigger alone, none without news, and what is not measured unless it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sparkring.conf.schema.retrain import TriggerConfig
from sparkring.spark_jobs.retraining.triggers import Situation, why_due

NOW = datetime(2026, 1, 31, tzinfo=UTC)
NEWS = Situation(dataset_version=3, rows=1_200, trained_version=2, trained_rows=1_000, champion_since=NOW - timedelta(days=8))


def _never() -> Mapping[str, float]:
    raise AssertionError("nobody asked for drift")


@pytest.mark.parametrize(("trigger", "reasons"), [
    ({}, ("200 new rows (trigger: 1)",)),
    ({"new_rows": 200}, ("200 new rows (trigger: 200)",)),
    ({"new_rows": 201}, ()),
    ({"new_rows": None, "max_age_days": 7}, ("the champion is 8.0 days old (trigger: 7)",)),
    ({"new_rows": None, "max_age_days": 9}, ()),
    ({"new_rows": None, "always": True}, ("dataset version 3 is new",)),
    ({"always": True, "max_age_days": 7}, ("dataset version 3 is new", "200 new rows (trigger: 1)",
                                           "the champion is 8.0 days old (trigger: 7)"))])
def test_each_trigger_holds_by_itself(trigger: dict[str, object], reasons: tuple[str, ...]) -> None:
    assert why_due(TriggerConfig.model_validate(trigger), NEWS, now=NOW, drift=_never) == reasons


@pytest.mark.parametrize(("indices", "reasons"), [
    ({"km": 0.3, "city": 0.1}, ("km has drifted: stability index 0.300 (trigger: 0.2)",)), ({"km": 0.2}, ()), ({}, ())])
def test_drift_is_measured_only_if_a_trigger_asks(indices: dict[str, float], reasons: tuple[str, ...]) -> None:
    assert why_due(TriggerConfig(new_rows=None, max_psi=0.2), NEWS, now=NOW, drift=lambda: indices) == reasons


def test_the_first_model_is_always_trained_and_none_twice_on_one_version() -> None:
    every = TriggerConfig(always=True, max_age_days=1, max_psi=0.001)
    first = replace(NEWS, trained_version=None, champion_since=None)
    assert why_due(TriggerConfig(new_rows=10_000), first, now=NOW, drift=_never) == ("no retraining yet",)
    assert why_due(every, replace(NEWS, dataset_version=2), now=NOW, drift=_never) == ()
    without_rows = replace(NEWS, rows=1_000)
    assert why_due(TriggerConfig(max_age_days=1), without_rows, now=NOW, drift=_never) == ()
