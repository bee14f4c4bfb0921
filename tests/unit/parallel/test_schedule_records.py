"""A step as records of an event stream: one a worker, laid side by side by the clock, and what the actions took in it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from sparkring.errors import ScheduleInvalid
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.catalogue import SCHEDULE_NAMES, build_schedule
from sparkring.pipelines.parallel.schedules.records import costs_seen, step_record, timeline_of
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.schedules.simulator import TimedAction, simulate
from sparkring.pipelines.training.loop.records import sampled_step

COSTS = Costs(forward_s=(0.01, 0.02), backward_s=(0.03, 0.04), input_s=(0.015, 0.02), weight_s=(0.015, 0.02),
              hop_forward_s=(0.0,), hop_backward_s=(0.0,), reduce_s=(0.005, 0.0), step_s=(0.001, 0.002))


def records(name: str = "1f1b", *, clock_s: float = 1e9) -> list[dict[str, Any]]:
    """Of a step that went as planned, through JSON, the workers in another order; each began by a clock of its own."""
    schedule = build_schedule(name, (2, 1), 4)
    played = simulate(schedule, COSTS).entries
    made = []
    for number, worker in enumerate(reversed(schedule.workers)):
        own_clock = [TimedAction(action, start - number, end - number) for action, start, end in played[worker]]
        made.append(json.loads(json.dumps(step_record(schedule, worker, own_clock, clock_s=clock_s + number))))
    return made


@pytest.mark.parametrize("name", [name for name in SCHEDULE_NAMES if name != "interleaved"])
def test_what_workers_recorded_by_their_own_clocks_comes_back_as_one_timeline(name: str) -> None:
    schedule, entries = timeline_of(records(name))
    wanted = build_schedule(name, (2, 1), 4)
    played = simulate(wanted, COSTS).entries
    assert schedule == wanted
    for worker in wanted.workers:
        assert [entry.start_s for entry in entries[worker]] == pytest.approx([entry.start_s for entry in played[worker]], abs=3e-6)
        assert [entry.end_s for entry in entries[worker]] == pytest.approx([entry.end_s for entry in played[worker]], abs=3e-6)


@pytest.mark.parametrize("name", [name for name in SCHEDULE_NAMES if name != "interleaved"])
def test_costs_seen_in_a_step_are_those_it_was_played_with(name: str) -> None:
    schedule, entries = timeline_of(records(name))
    seen = costs_seen(schedule, entries)
    for kind in ("forward_s", "backward_s", "input_s", "weight_s", "reduce_s", "step_s"):
        known = getattr(seen, kind)
        assert known == pytest.approx(getattr(COSTS, kind), abs=3e-6) or known == (0.0, 0.0), kind  # B, or I and W, do not occur
    again = simulate(schedule, seen)
    assert again.makespan_s == pytest.approx(max(entry.end_s for done in entries.values() for entry in done), abs=1e-4)


def test_one_pass_that_was_held_up_does_not_count() -> None:
    schedule, entries = timeline_of(records())
    late = {worker: tuple(TimedAction(action, start, end + (1.0 if str(action.text()) == "F0/1" else 0.0)) for action, start, end in done)
            for worker, done in entries.items()}
    assert costs_seen(schedule, late).forward_s == pytest.approx(COSTS.forward_s, abs=3e-6)


@pytest.mark.parametrize("damage", [
    pytest.param(lambda found: found[1:], id="a worker without a record"),
    pytest.param(lambda found: [*found, found[0]], id="a worker with two"),
    pytest.param(lambda found: [*found, {**found[0], "worker": [7, 0]}], id="a worker too many"),
    pytest.param(lambda found: [{**found[0], "micro_batches": 5}, *found[1:]], id="two schedules"),
    pytest.param(lambda found: found[:0], id="no record"),
])
def test_what_is_no_whole_step_is_refused(damage: Any) -> None:
    with pytest.raises(ScheduleInvalid):
        timeline_of(damage(records()))


def test_the_step_that_is_kept_is_the_second_one_and_of_full_rows_where_there_is_such_a_step() -> None:
    assert [sampled_step(first=0, steps=steps) for steps in (1, 2, 3, 100)] == [0, 0, 1, 1]
    assert [sampled_step(first=first, steps=10) for first in (5, 7, 8, 9)] == [6, 8, 8, 9]


def test_entries_of_a_worker_are_in_order_and_never_overlap() -> None:
    for done in timeline_of(records("zero_bubble"))[1].values():
        assert all(one.end_s <= other.start_s + 2e-6 for one, other in pairwise(done))


def test_a_worker_that_did_nothing_has_an_empty_record() -> None:
    schedule = build_schedule("gpipe", (1,), 1)
    assert step_record(schedule, Worker(0, 0), [], clock_s=0.0)["actions"] == ""
