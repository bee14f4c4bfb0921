"""One pipelined step from a run's ``timeline`` events, worker by worker, planned and measured. Pure: records in, facts out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkring.pipelines.parallel.schedules.records import costs_seen, timeline_of
from sparkring.pipelines.parallel.schedules.schedule import Schedule
from sparkring.pipelines.parallel.schedules.simulator import WorkerTimings, simulate

KEPT = 2
"""Timelines kept of each rank: when a ring ends early, some ranks have written one more than others."""

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """One pipelined step."""

    epoch: int
    """From 1."""
    number: int
    """In its epoch, from 1."""
    schedule: Schedule
    plan: WorkerTimings
    """The schedule simulated with the median time of each kind of pass, and messages that take no time."""
    measured: WorkerTimings


class Timelines:
    """Takes records one at a time and keeps the latest of each rank."""

    def __init__(self) -> None:
        self._latest: dict[int, deque[Record]] = {}
        """The latest records of each rank."""

    def add(self, record: Record) -> None:
        """Take a ``timeline`` record; those of a rank come in order."""
        self._latest.setdefault(record["rank"], deque(maxlen=KEPT)).append(record)

    def last_step(self) -> StepFacts | None:
        """The last step that all workers have recorded; None if there is none."""
        steps: dict[tuple[int, int, int], list[Record]] = {}
        for records in self._latest.values():
            for record in records:
                steps.setdefault((record["generation"], record["epoch"], record["step"]), []).append(record)
        whole = [place for place, records in steps.items() if len(records) == sum(records[0]["replicas"])]
        if not whole:
            return None
        _, epoch, step = last = max(whole)
        schedule, measured = timeline_of(steps[last])
        plan = simulate(schedule, costs_seen(schedule, measured)).entries
        return StepFacts(epoch=epoch + 1, number=step + 1, schedule=schedule, plan=plan, measured=measured)
