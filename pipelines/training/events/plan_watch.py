"""Predicted seconds of a step beside the measured ones: reported after the first steps of a run, then after each epoch."""

from __future__ import annotations

import statistics
from collections.abc import Callable

WARM_UP, FIRST_STEPS = 3, 20
"""Steps that do not count, since buffers and files are new to them; and counted steps before the first report."""
APART = 0.2
"""Share of the predicted seconds beyond which the difference is worth a warning."""


class PlanWatch:
    """Takes the seconds of a rank's steps, and writes ``plan`` events."""

    def __init__(self, predicted_s: float | None, write: Callable[..., None]) -> None:
        """Start to watch.

        Args:
            predicted_s: Predicted seconds of a step; None if no planner chose the layout: then this does nothing.
            write: Takes ``plan`` and the event's values.
        """
        self._predicted_s, self._write = predicted_s, write
        self._passed_over = 0
        self._seconds: list[float] = []
        self._spoke = False

    def step(self, seconds: float) -> None:
        """Count a step."""
        if self._predicted_s is None:
            return
        if self._passed_over < WARM_UP:
            self._passed_over += 1
            return
        self._seconds.append(seconds)
        if not self._spoke and len(self._seconds) == FIRST_STEPS:
            self.epoch_ends()

    def epoch_ends(self) -> None:
        """Report the steps since the last report, if there were any."""
        if self._predicted_s is None or not self._seconds:
            return
        self._spoke = True
        seconds, self._seconds = self._seconds, []
        measured_s = statistics.median(seconds)
        self._write("plan", predicted_s=self._predicted_s, measured_s=measured_s, steps=len(seconds),
                    text=warning(self._predicted_s, measured_s))


def warning(predicted_s: float, measured_s: float) -> str:
    """One line if the two differ much, else an empty text."""
    apart = measured_s / predicted_s - 1
    if abs(apart) <= APART:
        return ""
    more = "more" if apart > 0 else "less"
    return (f"a step takes {1e3 * measured_s:.4g} ms, {abs(apart):.0%} {more} than the {1e3 * predicted_s:.4g} ms that were planned, so "
            "another layout may be faster. Other work on these machines and slow reading have the same effect; to measure again, "
            "delete the run's plan.json and start the run again.")
