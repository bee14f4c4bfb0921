"""Whether a retraining is due, and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from sparkring.conf.schema.retrain import TriggerConfig


@dataclass(frozen=True)
class Situation:
    """What the triggers look at."""

    dataset_version: int
    rows: int
    """Rows of that version, over all splits."""
    trained_version: int | None
    """The dataset version of the last retraining; None if there was none."""
    trained_rows: int = 0
    champion_since: datetime | None = None
    """When the champion was registered; None if there is none."""


def why_due(trigger: TriggerConfig, found: Situation, *, now: datetime, drift: Callable[[], Mapping[str, float]]) -> tuple[str, ...]:
    """The triggers that hold, each in words; none if nothing is due.

    Args:
        trigger: ``retrain.trigger``.
        found: The dataset and the last retraining.
        now: The present moment.
        drift: Measures each feature's population stability index; called only if a trigger asks for it.
    """
    if found.trained_version is None:
        return ("no retraining yet",)
    if found.dataset_version == found.trained_version:
        return ()
    return tuple(_holding(trigger, found, now, drift))


def _holding(trigger: TriggerConfig, found: Situation, now: datetime, drift: Callable[[], Mapping[str, float]]) -> Iterator[str]:
    new = found.rows - found.trained_rows
    if trigger.always:
        yield f"dataset version {found.dataset_version} is new"
    if trigger.new_rows is not None and new >= trigger.new_rows:
        yield f"{new:,} new rows (trigger: {trigger.new_rows:,})"
    if trigger.max_age_days is not None and found.champion_since is not None and new > 0:
        days = (now - found.champion_since).total_seconds() / 86400
        if days > trigger.max_age_days:
            yield f"the champion is {days:.1f} days old (trigger: {trigger.max_age_days:g})"
    if trigger.max_psi is not None:
        worst, index = max(drift().items(), key=lambda one: one[1], default=("", 0.0))
        if index > trigger.max_psi:
            yield f"{worst} has drifted: stability index {index:.3f} (trigger: {trigger.max_psi:g})"
