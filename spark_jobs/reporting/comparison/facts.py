"""What a run learned over its steps, its seconds and the bytes that it sent, beside other runs. Pure: records in, facts out.

A step counts once, where it was done last. Its loss is the mean over its rows; before an exchange of local models over those of one rank.
Seconds are those of training: without what lies between two epochs, such as validation, and between two generations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite, nan
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
    ranks: tuple[int, ...]
    """Number of ranks of each ring in turn whose steps count; more than one after a failure, or a resumption on others."""
    hosts: int
    """The most hosts of such a ring; 0 if that is not recorded."""
    steps: int
    seconds: float
    """From the first step's beginning to the last one's end, without what lies between epochs and between generations."""
    sent_bytes: float
    """By all ranks together."""
    loss: float
    """Train loss of the last epoch; NaN if no step of it was finite."""
    held_out: Mapping[str, float]
    """Metrics of the epoch that became the model."""
    staleness: float | None
    """Mean over the updates; None where none is stale."""
    by_step: Curve
    """Without steps whose loss is not finite; so the others."""
    by_second: Curve
    by_megabyte: Curve
    note: str = ""
    """What else is to be known of it, in a sentence."""

    @property
    def ring(self) -> str:
        """E.g. ``4, then 2 on 2 hosts``."""
        return ", then ".join(map(str, self.ranks)) + (f" on {self.hosts} hosts" if self.hosts > 1 else "")

    @property
    def learned(self) -> bool:
        """Whether its last epoch has a train loss, and any step a loss to draw."""
        return isfinite(self.loss) and bool(self.by_step.y)


@dataclass(frozen=True)
class _Step:
    life: tuple[int, int]
    """Generation and epoch."""
    loss: float
    """NaN if it is not finite."""
    rows: int
    ended: float
    seconds: float
    sent: float
    staleness: int | None


@dataclass
class _Events:
    """What the records of a run say."""

    steps: list[_Step]
    """Each once."""
    rings: dict[int, tuple[int, set[str]]]
    """By generation: number of ranks, and hosts."""
    train_loss: float
    """Of the last epoch."""


def compared(strategy: str, run: str, records: Iterable[Record], held_out: Mapping[str, float], *, note: str = "") -> Compared:
    """The facts of one run, from its events.

    Args:
        strategy: The word for it.
        run: Its name.
        records: Its events, generation by generation.
        held_out: The metrics of its model.
        note: What else is to be known of it.
    """
    events = _read(records)
    ordered = sorted(events.steps, key=lambda step: step.ended)
    loss = np.array([step.loss for step in ordered])
    finite = np.isfinite(loss)
    weights = np.array([float(step.rows) for step in ordered])
    smooth = moving_mean(loss[finite], weights=weights[finite], window=max(1, int(finite.sum()) // 40))
    clock = np.cumsum(_seconds(ordered))
    sent = np.cumsum([step.sent for step in ordered]) / 1e6
    stale = [step.staleness for step in ordered if step.staleness is not None]
    rings = [events.rings[generation] for generation in sorted({step.life[0] for step in ordered}) if generation in events.rings]
    by_step, by_second, by_megabyte = (thin(x[finite], smooth) for x in (np.arange(1.0, len(loss) + 1), clock, sent))
    return Compared(
        strategy=strategy, run=run, ranks=tuple(size for size, _ in groupby(size for size, _ in rings)),
        hosts=max((len(hosts) for _, hosts in rings), default=0), steps=len(ordered), seconds=float(clock[-1]) if ordered else 0.0,
        sent_bytes=float(sum(step.sent for step in ordered)), loss=events.train_loss, held_out=held_out,
        staleness=float(np.mean(stale)) if stale else None, by_step=by_step, by_second=by_second, by_megabyte=by_megabyte, note=note)


def _read(records: Iterable[Record]) -> _Events:
    found: dict[tuple[int, int], list[Record]] = {}
    rings: dict[int, tuple[int, set[str]]] = {}
    train_loss = nan
    for record in records:
        if record["event"] == "step":
            place = (record["epoch"], record["step"])
            if place in found and found[place][0]["generation"] < record["generation"]:
                found[place] = []
            found.setdefault(place, []).append(record)
        elif record["event"] == "start":
            rings.setdefault(record["generation"], (record["size"], set()))[1].add(record["host"])
        elif record["event"] == "epoch":
            train_loss = record["train_loss"]
    steps = [_Step(life=(ranks[0]["generation"], ranks[0]["epoch"]), loss=_mean_loss(ranks), rows=ranks[0]["global_rows"],
                   ended=max(float(one["time"]) for one in ranks),
                   seconds=max(one["data_s"] + one["compute_s"] + one["comm_s"] for one in ranks),
                   sent=sum(one.get("sent_bytes", 0) for one in ranks), staleness=ranks[0].get("staleness"))
             for ranks in found.values()]
    return _Events(steps, rings, train_loss)


def _mean_loss(ranks: Sequence[Record]) -> float:
    """The mean over the rows of all ranks' records that have a loss; equal losses stay what they are."""
    known = [one for one in ranks if one["loss"] is not None]
    rows = sum(one["rows"] for one in known)
    if not rows:
        return float(known[0]["loss"]) if known else nan
    return float(sum(one["loss"] * one["rows"] for one in known) / rows)


def _seconds(ordered: Sequence[_Step]) -> list[float]:
    """Seconds up to each step's end, from that of the one before; its own where it is the first of an epoch or a ring."""
    before = (None, *ordered)
    return [step.ended - last.ended if last and step.life == last.life else step.seconds
            for last, step in zip(before, ordered, strict=False)]


def verdict(runs: Sequence[Compared]) -> str:
    """One paragraph, made from the numbers."""
    return " ".join([*_of_losses([run for run in runs if run.learned]), *_warnings(runs)])


def _of_losses(runs: Sequence[Compared]) -> Iterator[str]:
    if not runs:
        return
    lowest = min(runs, key=lambda run: run.loss)
    fastest = min(runs, key=lambda run: run.seconds)
    least = min(runs, key=lambda run: run.sent_bytes)
    steps = count(max(run.steps for run in runs))
    yield f"After {steps} steps {lowest.strategy} has the lowest train loss ({metric(lowest.loss)})."
    yield f"{fastest.strategy} took the least time ({duration(fastest.seconds)})."
    if least.sent_bytes < max(run.sent_bytes for run in runs):
        yield f"{least.strategy} sent the least ({size(least.sent_bytes)})."
    highest = max(run.loss for run in runs)
    reached = {run.strategy: seconds_to(highest, run) for run in runs}
    words = ", ".join(f"{strategy} {'never' if seconds is None else duration(seconds)}" for strategy, seconds in reached.items())
    yield f"Time to a train loss of {metric(highest)}, which all had in their last epoch: {words}."


def _warnings(runs: Sequence[Compared]) -> Iterator[str]:
    spoiled = [run.strategy for run in runs if not run.learned]
    if spoiled:
        yield f"No finite train loss, and so no judgement: {', '.join(spoiled)}; try a lower train.optimizer.lr."
    if len({run.ring for run in runs}) > 1:
        yield ("They were not trained on the same ranks, so seconds and bytes say little: "
               f"{', '.join(f'{run.strategy} on {run.ring}' for run in runs)}.")


def seconds_to(loss: float, run: Compared) -> float | None:
    """Seconds until the smoothed loss of a run is at most this; None if it never is."""
    return next((second for second, value in zip(run.by_second.x, run.by_second.y, strict=True) if value <= loss), None)
