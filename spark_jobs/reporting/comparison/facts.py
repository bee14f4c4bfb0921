"""What a run learned over its steps, its seconds and the bytes that it sent, beside other runs. Pure: records in, facts out.

A step counts once, where it was done last. Its loss is the mean over its rows; before an exchange of local models over those of one rank.
Seconds are those of training: without what lies between two epochs, such as validation, and between two generations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from sparkring.spark_jobs.reporting.facts.thinning import Curve, moving_mean, thin
from sparkring.spark_jobs.reporting.facts.words import count, duration, metric, size

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One run."""

    strategy: str
    """The word that asked for it, e.g. ``stale_sync:4``."""
    run: str
    steps: int
    seconds: float
    """From the first step's beginning to the last one's end, without what lies between epochs and between generations."""
    sent_bytes: float
    """By all ranks together."""
    loss: float
    """Train loss of the last epoch."""
    held_out: Mapping[str, float]
    """Metrics of the epoch that became the model."""
    staleness: float | None
    """Mean over the updates; None where none is stale."""
    by_step: Curve
    by_second: Curve
    by_megabyte: Curve


@dataclass(frozen=True)
class _Step:
    life: tuple[int, int]
    """Generation and epoch."""
    loss: float
    rows: int
    ended: float
    seconds: float
    sent: float
    staleness: int | None


def compared(strategy: str, run: str, records: Iterable[Record], held_out: Mapping[str, float]) -> Compared:
    """The facts of one run, from its events.

    Args:
        strategy: The word for it.
        run: Its name.
        records: Its events, generation by generation.
        held_out: The metrics of its model.
    """
    steps, train_loss = _steps(records)
    ordered = sorted(steps, key=lambda step: step.ended)
    loss = np.array([step.loss for step in ordered])
    weights = np.array([float(step.rows) for step in ordered])
    smooth = moving_mean(loss, weights=weights, window=max(1, len(loss) // 40))
    clock = _clock(ordered)
    sent = np.array([*accumulate(step.sent for step in ordered)]) / 1e6
    stale = [step.staleness for step in ordered if step.staleness is not None]
    return Compared(
        strategy=strategy, run=run, steps=len(ordered), seconds=float(clock[-1]), sent_bytes=float(sent[-1]) * 1e6, loss=train_loss,
        held_out=held_out, staleness=float(np.mean(stale)) if stale else None,
        by_step=thin(np.arange(1.0, len(loss) + 1), smooth), by_second=thin(clock, smooth), by_megabyte=thin(sent, smooth))


def _steps(records: Iterable[Record]) -> tuple[list[_Step], float]:
    """Each step once, and the train loss of the last epoch."""
    found: dict[tuple[int, int], list[Record]] = {}
    train_loss = float("nan")
    for record in records:
        if record["event"] == "step" and record["loss"] is not None:
            place = (record["epoch"], record["step"])
            if place in found and found[place][0]["generation"] < record["generation"]:
                found[place] = []
            found.setdefault(place, []).append(record)
        elif record["event"] == "epoch":
            train_loss = record["train_loss"]
    return [_Step(life=(ranks[0]["generation"], ranks[0]["epoch"]), loss=_mean_loss(ranks), rows=ranks[0]["global_rows"],
                  ended=max(float(one["time"]) for one in ranks),
                  seconds=max(one["data_s"] + one["compute_s"] + one["comm_s"] for one in ranks),
                  sent=sum(one.get("sent_bytes", 0) for one in ranks), staleness=ranks[0].get("staleness"))
            for ranks in found.values()], train_loss


def _mean_loss(ranks: Sequence[Record]) -> float:
    """The mean over the rows of all ranks' records; equal losses stay what they are."""
    rows = sum(one["rows"] for one in ranks)
    return float(sum(one["loss"] * one["rows"] for one in ranks) / rows) if rows else float(ranks[0]["loss"])


def _clock(ordered: Sequence[_Step]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Seconds at each step's end."""
    passed = [ordered[0].seconds, *(step.ended - before.ended if step.life == before.life else step.seconds
                                    for before, step in pairwise(ordered))]
    return np.cumsum(passed)


def verdict(runs: Sequence[Compared]) -> str:
    """One paragraph, made from the numbers."""
    lowest = min(runs, key=lambda run: run.loss)
    fastest = min(runs, key=lambda run: run.seconds)
    least = min(runs, key=lambda run: run.sent_bytes)
    steps = count(max(run.steps for run in runs))
    sentences = [f"After {steps} steps {lowest.strategy} has the lowest train loss ({metric(lowest.loss)}).",
                 f"{fastest.strategy} took the least time ({duration(fastest.seconds)})."]
    if least.sent_bytes < max(run.sent_bytes for run in runs):
        sentences.append(f"{least.strategy} sent the least ({size(least.sent_bytes)}).")
    highest = max(run.loss for run in runs)
    reached = {run.strategy: seconds_to(highest, run) for run in runs}
    words = ", ".join(f"{strategy} {'never' if seconds is None else duration(seconds)}" for strategy, seconds in reached.items())
    sentences.append(f"Time to a train loss of {metric(highest)}, which all had in their last epoch: {words}.")
    return " ".join(sentences)


def seconds_to(loss: float, run: Compared) -> float | None:
    """Seconds until the smoothed loss of a run is at most this; None if it never is."""
    return next((second for second, value in zip(run.by_second.x, run.by_second.y, strict=True) if value <= loss), None)
