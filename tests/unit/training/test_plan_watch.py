"""Predicted beside measured seconds of a step: when it is said, of which steps, and when it is worth a warning."""

from __future__ import annotations

from typing import Any

import pytest

from sparkring.pipelines.training.events.plan_watch import FIRST_STEPS, WARM_UP, PlanWatch, warning


class Written:
    """What a watch wrote."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: str, **values: Any) -> None:
        assert event == "plan"
        self.events.append(values)


def test_it_speaks_after_the_first_steps_but_for_the_very_first_and_then_at_the_end_of_each_epoch() -> None:
    written = Written()
    watch = PlanWatch(0.5, written)
    for number in range(WARM_UP + FIRST_STEPS):
        assert not written.events, f"before step {number}"
        watch.step(99.0 if number < WARM_UP else 0.5 + number / 1000)
    middle_s = 0.5 + (WARM_UP + (FIRST_STEPS - 1) / 2) / 1000
    assert written.events == [{"predicted_s": 0.5, "measured_s": pytest.approx(middle_s), "steps": FIRST_STEPS, "text": ""}]
    for _ in range(3 * FIRST_STEPS):
        watch.step(0.9)
    watch.epoch_ends()
    watch.epoch_ends()
    assert [event["steps"] for event in written.events] == [FIRST_STEPS, 3 * FIRST_STEPS], "no step since, no word"
    assert "80% more than the 500 ms" in written.events[1]["text"]


def test_an_epoch_of_few_steps_is_told_at_its_end() -> None:
    written = Written()
    watch = PlanWatch(1.0, written)
    watch.epoch_ends()
    for _ in range(WARM_UP + 1):
        watch.step(1.1)
    watch.epoch_ends()
    assert [(event["measured_s"], event["steps"]) for event in written.events] == [(1.1, 1)]


def test_where_nothing_was_predicted_nothing_is_said() -> None:
    written = Written()
    watch = PlanWatch(None, written)
    for _ in range(2 * (WARM_UP + FIRST_STEPS)):
        watch.step(1.0)
    watch.epoch_ends()
    assert not written.events


@pytest.mark.parametrize(("measured_s", "expected"), [
    pytest.param(1.19, "", id="near enough"),
    pytest.param(0.81, "", id="near enough below"),
    pytest.param(1.25, "25% more than the 1000 ms", id="slower"),
    pytest.param(0.5, "50% less than the 1000 ms", id="faster"),
])
def test_only_what_is_far_apart_is_warned_of(measured_s: float, expected: str) -> None:
    assert bool(warning(1.0, measured_s)) == bool(expected)
    assert expected in warning(1.0, measured_s)
