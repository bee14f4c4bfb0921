"""The cost of faults to a run: seconds to resume, steps done again, rows lost or repeated. Pure: records in, figures out.

If several generations did a step, the last one's counts, since its checkpoints lead to the end; ``sparkring audit``
proves the same from hashes. Time runs from the strike, as the struck rank's clock has it, to the end of the next generation's first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkring.spark_jobs.fault_injection.faults import ENDING, Strike

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Resumption:
    """The cost of one strike."""

    number: int
    kind: str
    rank: int
    at_step: int
    """Optimizer steps done before it."""
    ranks: tuple[int, int]
    """The ring's size before and after."""
    resume_s: float | None
    """From the strike to the end of the first step after it; None if the generation survived, or the run never resumed."""
    steps_redone: int
    """Steps that had to be done again."""


@dataclass(frozen=True)
class Losses:
    """All losses of a run."""

    resumptions: tuple[Resumption, ...]
    rows_lost: int
    """Rows of epochs that no counting step has read."""
    rows_repeated: int
    """Rows that the steps of an epoch have read more than once."""
    steps: int
    """Optimizer steps that count."""
    wall_s: float
    """From the beginning of the first step to the end of the last one."""
    useful_s: float
    """The part of ``wall_s`` from the first to the last counting step of each generation, both included."""

    @property
    def goodput(self) -> float:
        """Useful share of the wall-clock time."""
        return self.useful_s / self.wall_s if self.wall_s else 0.0


@dataclass
class _Life:
    """One generation."""

    size: int = 0
    begins: int = 0
    """Optimizer steps that had been done before."""
    ends: int = 0
    """Optimizer steps that its furthest rank had done when it ended."""
    first_step: float = float("inf")
    """When its first step ended, on the fastest rank."""
    spent: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By steps done before: when a step began and ended, on rank 0."""


@dataclass
class _Step:
    generation: int
    rows: int = 0
    row_ids: list[int] = field(default_factory=list)
    """Empty if they are not recorded."""


def losses(records: Iterable[Record], strikes: Sequence[Strike], *, rows_per_epoch: int) -> Losses:
    """Compute the cost of faults from a run's events.

    Args:
        records: All events of the run, generation by generation.
        strikes: The faults that struck it.
        rows_per_epoch: Rows of the train split.
    """
    lives: dict[int, _Life] = {}
    steps: dict[tuple[int, int], _Step] = {}
    steps_per_epoch = 0
    for record in records:
        life = lives.setdefault(record["generation"], _Life())
        if record["event"] == "start":
            steps_per_epoch = record["steps_per_epoch"]
            life.size, life.begins = record["size"], record["epoch"] * steps_per_epoch + record["step"]
            life.ends = max(life.ends, life.begins)
        elif record["event"] == "step":
            _add_step(record, life, steps, before=record["epoch"] * steps_per_epoch + record["step"])
    lost, repeated = _rows(steps, rows_per_epoch)
    spans = [span for life in lives.values() for span in life.spent.values()]
    wall = max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else 0.0
    return Losses(tuple(_resumption(strike, lives) for strike in strikes), lost, repeated, len(steps), wall, _useful_s(lives))


def _add_step(record: Record, life: _Life, steps: dict[tuple[int, int], _Step], *, before: int) -> None:
    life.ends = max(life.ends, before + 1)
    life.first_step = min(life.first_step, record["time"])
    if record["rank"] == 0:
        took = record["data_s"] + record["compute_s"] + record["comm_s"]
        life.spent[before] = (record["time"] - took, record["time"])
    place = (record["epoch"], record["step"])
    step = steps.get(place)
    if step is None or step.generation < record["generation"]:
        step = steps[place] = _Step(record["generation"])
    if step.generation == record["generation"]:
        step.rows += record["rows"]
        step.row_ids += record.get("row_ids", [])


def _rows(steps: Mapping[tuple[int, int], _Step], rows_per_epoch: int) -> tuple[int, int]:
    """(lost, repeated) over all epochs; row by row where their ids were recorded, else by their number."""
    lost = repeated = 0
    for epoch in sorted({epoch for epoch, _ in steps}):
        mine = [step for (number, _), step in steps.items() if number == epoch]
        rows, ids = sum(step.rows for step in mine), [row for step in mine for row in step.row_ids]
        distinct = len(set(ids)) if ids else min(rows, rows_per_epoch)
        lost += max(0, rows_per_epoch - distinct)
        repeated += rows - distinct
    return lost, repeated


def _useful_s(lives: Mapping[int, _Life]) -> float:
    """Seconds of counting steps: a generation's steps count up to where the next generation resumes."""
    useful, up_to = 0.0, 1 << 62
    for _, life in sorted(lives.items(), reverse=True):
        counted = [span for before, span in life.spent.items() if before < up_to]
        if counted:
            useful += max(end for _, end in counted) - min(begin for begin, _ in counted)
        if life.size:
            up_to = min(up_to, life.begins)
    return useful


def _resumption(strike: Strike, lives: Mapping[int, _Life]) -> Resumption:
    mine = lives.get(strike.generation, _Life())
    later = next((lives[number] for number in sorted(lives) if number > strike.generation and lives[number].size), None)
    if strike.kind not in ENDING or later is None:
        return Resumption(strike.number, strike.kind, strike.rank, strike.steps, (mine.size, mine.size), None, 0)
    resumed = next((lives[number].first_step for number in sorted(lives) if number > strike.generation and lives[number].spent), None)
    return Resumption(strike.number, strike.kind, strike.rank, strike.steps, (mine.size, later.size),
                      None if resumed is None else resumed - strike.time, max(0, mine.ends - later.begins))
