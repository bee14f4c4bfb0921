"""Rank 0's records as MLflow's metrics: each step and each epoch of a run once, whatever was repeated after a failure. Pure.

    train/loss, train/learning_rate, train/rows_per_s      each optimizer step
    epoch/train_loss, epoch/seconds, validation/<metric>   each epoch

MLflow's step of a metric is the number of optimizer steps done by then, counted from the run's beginning. A step that is done again after
a failure has the same loss, to rounding; the first one counts. Times are those of the records, so a metric that is sent twice is equal to
itself, and MLflow keeps one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sparkring.pipelines.training.events.writer import Record


class Reading(NamedTuple):
    """One value of one metric."""

    key: str
    value: float
    step: int
    time_ms: int


class Readings:
    """Turns records into readings, and knows how far it is.

    Args:
        steps: Optimizer steps that are sent already.
        epochs: Epochs that are sent already.
    """

    def __init__(self, *, steps: int = 0, epochs: int = 0) -> None:
        self.steps, self.epochs = steps, epochs
        self.start: Record | None = None
        """The latest start record."""

    def of(self, record: Record) -> list[Reading]:
        """The record's readings; none if they were sent, or the record has none."""
        if record["event"] == "start":
            self.start = record
        if self.start is None:
            return []
        if record["event"] == "step":
            return self._step(record, record["epoch"] * self.start["steps_per_epoch"] + record["step"] + 1)
        if record["event"] == "epoch":
            return self._epoch(record, record["epoch"] + 1, steps_per_epoch=self.start["steps_per_epoch"])
        return []

    def _step(self, record: Record, step: int) -> list[Reading]:
        if step <= self.steps:
            return []
        self.steps = step
        seconds = record["data_s"] + record["compute_s"] + record["comm_s"]
        values = {"train/loss": math.nan if record["loss"] is None else record["loss"], "train/learning_rate": record["lr"],
                  **({"train/rows_per_s": record["global_rows"] / seconds} if seconds > 0 else {})}
        return list(readings(values, step=step, time_s=record["time"]))

    def _epoch(self, record: Record, epoch: int, *, steps_per_epoch: int) -> list[Reading]:
        if epoch <= self.epochs:
            return []
        self.epochs = epoch
        values = {"epoch/train_loss": record["train_loss"], "epoch/seconds": record["seconds"],
                  **named("validation", record["validation"] or {})}
        return list(readings(values, step=epoch * steps_per_epoch, time_s=record["time"]))


def readings(values: Mapping[str, float], *, step: int, time_s: float) -> Iterator[Reading]:
    """One reading a value."""
    return (Reading(key, value, step, round(time_s * 1000)) for key, value in values.items())


def named(group: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are one number, as ``<group>/<name>``."""
    return {f"{group}/{name}": float(value) for name, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)}
