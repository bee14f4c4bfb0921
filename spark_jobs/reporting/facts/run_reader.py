"""Compute a run's facts from its events: losses, epochs, and where the time went.

Events arrive rank by rank, so steps are matched across ranks by (epoch, step). A step that was repeated after a restart counts
once in the curves (the last time) and every time in the seconds spent. Each step keeps only sums, so a run of 10^5 steps
takes tens of MB on any number of ranks. Pure: records in, facts out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparkring.pipelines.training.events.slow_ranks import Slow
from sparkring.spark_jobs.reporting.facts.run import Epoch, Generation, LossCurve, Planned, RankTime, RunFacts, StepTimes, TimeSpent
from sparkring.spark_jobs.reporting.facts.step import Timelines
from sparkring.spark_jobs.reporting.facts.thinning import Curve, Series, bin_means, envelope, moving_mean, thin

MOST_BARS = 24
"""Most bars; more ranks are shown as means of neighbours."""
TIME_BINS = 120
"""Bins of the seconds along the run: wide, because single steps are noise."""
SMALL_STEP = 0.1
"""Share of the usual rows under which a step's own loss is noise."""

Record = Mapping[str, Any]


def read_run(records: Iterable[Record]) -> RunFacts | None:
    """Compute the facts of a run.

    Args:
        records: As ``pipelines/training/events/writer.py`` yields them: generation by generation, rank by rank, in order.
    Returns:
        The facts, or None if no rank of the run has started yet.
    """
    events = _Events()
    for record in records:
        events.add(record)
    return _facts(events) if any(life.start for life in events.lives.values()) else None


@dataclass(slots=True)
class _Step:
    """One optimizer step, its seconds summed over the ranks."""

    generation: int
    loss: float
    rows: int
    data: float = 0.0
    compute: float = 0.0
    comm: float = 0.0
    ranks: int = 0
    staleness: int | None = None


@dataclass(slots=True)
class _RankLife:
    """One rank's process."""

    began: float
    latest: float
    start: Record | None = None
    data: float = 0.0
    compute: float = 0.0
    comm: float = 0.0
    ended: bool = False

    def seconds(self) -> TimeSpent:
        inside = self.data + self.compute + self.comm
        return TimeSpent(data=self.data, compute=self.compute, comm=self.comm, other=max(0.0, self.latest - self.began - inside))


@dataclass
class _Events:
    """Takes records one at a time and keeps the parts that the facts need, by step and process."""

    lives: dict[tuple[int, int], _RankLife] = field(default_factory=dict)
    """By (generation, rank), ascending."""
    steps: dict[tuple[int, int], _Step] = field(default_factory=dict)
    """By (epoch, step)."""
    epochs: dict[int, Record] = field(default_factory=dict)
    timelines: Timelines = field(default_factory=Timelines)
    warnings: list[str] = field(default_factory=list)
    slow: list[Record] = field(default_factory=list)
    checkpoints: int = 0
    failed_checkpoints: list[str] = field(default_factory=list)
    repeated: int = 0
    planned: Planned | None = None
    ended_early: str = ""

    def add(self, record: Record) -> None:
        kind = record["event"]
        life = self.lives.setdefault((record["generation"], record["rank"]), _RankLife(record["time"], record["time"]))
        life.latest = record["time"]
        if kind == "start":
            life.start = record
        elif kind == "step":
            self._add_step(record, life)
        elif kind == "timeline":
            self.timelines.add(record)
        elif kind == "epoch":
            self.epochs[record["epoch"]] = record
            self.ended_early = ""
        elif kind == "stopped_early":
            self.ended_early = record["text"]
        elif kind == "checkpoint":
            self.checkpoints += 1
        elif kind == "warning" and record.get("what") == "checkpoint":
            self.failed_checkpoints.append(record["text"])
        elif kind == "warning" or (kind == "rollback" and record["rank"] == 0):
            self.warnings.append(record["text"])
        elif kind == "slow":
            self.slow.append(record)
        elif kind == "plan":
            self.planned = Planned(predicted_s=record["predicted_s"], measured_s=record["measured_s"], warning=record["text"])
        elif kind == "end":
            life.ended = True

    def _add_step(self, record: Record, life: _RankLife) -> None:
        position, generation = (record["epoch"], record["step"]), record["generation"]
        step = self.steps.get(position)
        if step is None or step.generation < generation:
            self.repeated += step is not None
            step = self.steps[position] = _Step(generation, record["loss"], record["global_rows"], staleness=record.get("staleness"))
        data, compute, comm = record["data_s"], record["compute_s"], record["comm_s"]
        step.data, step.compute, step.comm, step.ranks = step.data + data, step.compute + compute, step.comm + comm, step.ranks + 1
        life.data, life.compute, life.comm = life.data + data, life.compute + compute, life.comm + comm


def _facts(events: _Events) -> RunFacts:
    start = [life.start for life in events.lives.values() if life.start][-1]  # of the last generation
    positions = sorted(events.steps)
    ordered = [events.steps[position] for position in positions]
    losses, rows = (np.array([getattr(step, name) for step in ordered], dtype=np.float64) for name in ("loss", "rows"))
    seconds = np.array([(step.data / step.ranks, step.compute / step.ranks, step.comm / step.ranks) for step in ordered]).reshape(-1, 3)
    by_rank = _by_rank(events.lives)
    stalenesses = Counter(step.staleness for step in ordered if step.staleness is not None)
    at_once = sum(life.data + life.compute > 0 for (generation, _), life in events.lives.items() if generation == start["generation"]) if (
        stalenesses) else 1  # steps that were dealt were done at once
    return RunFacts(
        dataset_version=start["dataset_version"], fold=start.get("fold"), size=start["size"], device=start["device"], lanes=start["lanes"],
        batch_rows=start["batch_rows"], reduction=start["reduction"], wire=start.get("wire", "exact"),
        stalenesses=dict(sorted(stalenesses.items())), steps=len(ordered), repeated_steps=events.repeated,
        started=min(life.began for life in events.lives.values()),
        wall_s=_wall_s(events.lives), rows_per_s=float(rows.sum() * at_once / seconds.sum()) if seconds.sum() > 0 else math.nan,
        checkpoints=events.checkpoints, loss=_loss_curve(losses, rows, _epoch_ends(positions)), times=_group(by_rank),
        mean_time=_mean([time.seconds for time in by_rank]), step_times=_step_times(seconds),
        throughput=_throughput(rows * at_once, seconds.sum(axis=1)),
        epochs=tuple(_epoch(record) for _, record in sorted(events.epochs.items())), generations=_generations(events.lives),
        step=events.timelines.last_step(), warnings=(*events.warnings, *_not_written(events), *_slow(events)), planned=events.planned,
        ended_early=events.ended_early)


def _not_written(events: _Events) -> list[str]:
    """One line for all checkpoints that were not written."""
    failed = events.failed_checkpoints
    return [f"{len(failed)} checkpoints could not be written; training continued without them; the last: {failed[-1]}"] if failed else []


def _slow(events: _Events) -> list[str]:
    """A line for each rank that delayed the others, or the network, and one for its recovery."""
    lines = []
    for record in events.slow:
        life = events.lives.get((record["generation"], record["slow_rank"]))
        slow = Slow.of(record)
        where = f"up to epoch {record['epoch'] + 1}, step {record['step']}"
        who = "the network" if slow.cause == "network" else f"rank {slow.slow_rank}"
        lines.append(f"{where}: {who} delayed the others, and then no longer; later delays are not listed" if slow.over else
                     f"{where}: {slow.text(life.start['host'] if life and life.start else '')}")
    return lines


def _epoch_ends(positions: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    """Positions between steps, counted from 1, at which an epoch ended."""
    return tuple(place + 0.5 for place in range(1, len(positions)) if positions[place][0] != positions[place - 1][0])


def _epoch(record: Record) -> Epoch:
    return Epoch(number=record["epoch"] + 1, seconds=record["seconds"], train_loss=record["train_loss"], rows=record["rows"],
                 exact=record["exact"], validation=dict(record["validation"] or {}))


def _loss_curve(losses: Series, rows: Series, epoch_ends: tuple[float, ...]) -> LossCurve:
    finite = np.isfinite(losses)
    number, loss, weight = np.arange(1.0, len(losses) + 1)[finite], losses[finite], rows[finite]
    smooth = moving_mean(loss, weights=weight, window=max(1, len(loss) // 40))
    usual = weight >= SMALL_STEP * np.max(weight, initial=0.0)
    return LossCurve(raw=envelope(number[usual], loss[usual]), smooth=thin(number, smooth), epoch_ends=epoch_ends,
                     small=int((~usual).sum()), not_finite=int((~finite).sum()))


def _step_times(seconds: Series) -> StepTimes:
    """``seconds`` (steps, 3): data, compute, communication."""
    x, data, compute, comm = (bin_means(column, most=TIME_BINS) for column in (np.arange(1.0, len(seconds) + 1), *seconds.T))
    return StepTimes(x=tuple(x.tolist()), data=tuple(data.tolist()), compute=tuple(compute.tolist()), comm=tuple(comm.tolist()))


def _throughput(rows: Series, spent: Series) -> Curve:
    """Rows divided by seconds in each bin, which differs from a mean of the steps' rates."""
    x, binned_rows, binned_s = (bin_means(series, most=TIME_BINS) for series in (np.arange(1.0, len(rows) + 1), rows, spent))
    known = binned_s > 0
    return Curve(tuple(x[known].tolist()), tuple((binned_rows[known] / binned_s[known]).tolist()))


def _by_rank(lives: Mapping[tuple[int, int], _RankLife]) -> list[RankTime]:
    """Each rank's seconds over all generations."""
    ranks: dict[int, list[_RankLife]] = {}
    for (_, rank), life in lives.items():
        ranks.setdefault(rank, []).append(life)
    return [RankTime(f"rank {rank}", _hosts(mine), _sum([life.seconds() for life in mine])) for rank, mine in sorted(ranks.items())]


def _group(by_rank: Sequence[RankTime]) -> tuple[RankTime, ...]:
    """At most ``MOST_BARS`` bars: one a rank, or one for several neighbours."""
    width = -(-len(by_rank) // MOST_BARS)
    if width == 1:
        return tuple(by_rank)
    return tuple(_neighbours(by_rank[first:first + width], first) for first in range(0, len(by_rank), width))


def _neighbours(times: Sequence[RankTime], first: int) -> RankTime:
    hosts = dict.fromkeys(host for time in times for host in time.hosts)
    return RankTime(f"ranks {first} to {first + len(times) - 1}", tuple(hosts), _mean([time.seconds for time in times]))


def _hosts(lives: Iterable[_RankLife]) -> tuple[str, ...]:
    """Distinct hosts, in order."""
    return tuple(dict.fromkeys(life.start["host"] for life in lives if life.start))


def _wall_s(lives: Mapping[tuple[int, int], _RankLife]) -> float:
    """From the first to the last event of each generation, added up."""
    return sum(max(life.latest for life in ring) - min(life.began for life in ring) for ring in _rings(lives).values())


def _generations(lives: Mapping[tuple[int, int], _RankLife]) -> tuple[Generation, ...]:
    return tuple(_generation(number, ring) for number, ring in sorted(_rings(lives).items()) if any(life.start for life in ring))


def _generation(number: int, ring: Sequence[_RankLife]) -> Generation:
    start = next(life.start for life in ring if life.start)
    return Generation(number=number, size=start["size"], hosts=_hosts(ring), from_epoch=start["epoch"] + 1, from_step=start["step"],
                      finished=any(life.ended for life in ring))


def _rings(lives: Mapping[tuple[int, int], _RankLife]) -> dict[int, list[_RankLife]]:
    """The processes of each generation."""
    rings: dict[int, list[_RankLife]] = {}
    for (generation, _), life in lives.items():
        rings.setdefault(generation, []).append(life)
    return rings


def _sum(parts: Iterable[TimeSpent]) -> TimeSpent:
    listed = list(parts)
    return TimeSpent(**{name: sum(getattr(part, name) for part in listed) for name in ("data", "compute", "comm", "other")})


def _mean(parts: Sequence[TimeSpent]) -> TimeSpent:
    total = _sum(parts)
    return TimeSpent(**{name: getattr(total, name) / len(parts) for name in ("data", "compute", "comm", "other")})
