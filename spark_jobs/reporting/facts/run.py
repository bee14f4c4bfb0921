"""Facts about a training run, as plain data; ``run_reader.py`` computes them from events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkring.spark_jobs.reporting.facts.step import StepFacts
from sparkring.spark_jobs.reporting.facts.thinning import Band, Curve


@dataclass(frozen=True, kw_only=True)
class TimeSpent:
    """Seconds by use."""

    data: float
    """Waiting for rows."""
    compute: float
    """Forward, backward and optimizer."""
    comm: float
    """Waiting for other ranks and for the sum of gradients."""
    other: float = 0.0
    """The rest between a rank's first and last event: validation, checkpoints."""

    @property
    def steps(self) -> float:
        """Seconds inside training steps."""
        return self.data + self.compute + self.comm

    @property
    def total(self) -> float:
        """All seconds."""
        return self.steps + self.other


@dataclass(frozen=True)
class RankTime:
    """One bar: a rank, or the mean of neighbouring ranks."""

    label: str
    hosts: tuple[str, ...]
    """Their hosts."""
    seconds: TimeSpent


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One pass over the train split."""

    number: int
    """From 1."""
    seconds: float
    train_loss: float
    rows: int
    exact: bool
    """Whether the ids of the rows seen add up to the split's digest: each row exactly once."""
    validation: Mapping[str, float]

    @property
    def validated(self) -> tuple[str, float] | None:
        """The best-known validation metric of the task beside the loss, and its value; None before the evaluation."""
        known = (("auc", "AUC"), ("accuracy", "accuracy"), ("r2", "R2"))
        return next(((title, self.validation[name]) for name, title in known if name in self.validation), None)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One life of the ring."""

    number: int
    size: int
    hosts: tuple[str, ...]
    """Distinct hosts, in order of rank."""
    from_epoch: int
    """Epoch that it resumed from, counted from 1."""
    from_step: int
    finished: bool
    """Whether rank 0 reached the end."""


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Train loss per step."""

    raw: Band
    """Single steps, without small ones."""
    smooth: Curve
    """Mean over the rows of neighbouring steps, small ones included."""
    epoch_ends: tuple[float, ...]
    """Step numbers after which an epoch ended, without the last."""
    small: int
    """Steps of so few rows that their own loss says little, such as the last of an epoch."""
    not_finite: int
    """Steps whose loss was infinite or not a number; they are not drawn."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Mean seconds of a rank per step, along the run; all four of equal length."""

    x: tuple[float, ...]
    data: tuple[float, ...]
    compute: tuple[float, ...]
    comm: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The step time that the planner predicted for its layout, and the measured one, in the last generation that recorded both."""

    predicted_s: float
    measured_s: float
    """Median over several steps."""
    warning: str
    """A sentence if the two differ much; else empty."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Everything that the report says about training."""

    dataset_version: int
    fold: int | None = None
    """Of a version in folds: the one that validates."""
    size: int
    device: str
    lanes: int
    batch_rows: int
    """Rows of a step over all ranks."""
    reduction: str
    wire: str
    """The type in which gradients travelled between hosts."""
    stalenesses: Mapping[int, int]
    """Of a run whose steps were dealt: staleness -> the number of updates that had it; else empty."""
    steps: int
    """Distinct optimizer steps."""
    repeated_steps: int
    """Steps repeated after a restart."""
    started: float
    """Seconds since 1970."""
    wall_s: float
    """Seconds between the first and the last event of each generation, added up."""
    rows_per_s: float
    """Rows of all ranks together per second inside training steps."""
    checkpoints: int
    loss: LossCurve
    times: tuple[RankTime, ...]
    mean_time: TimeSpent
    """Mean over ranks."""
    step_times: StepTimes
    throughput: Curve
    """Rows of all ranks together per second, over the steps."""
    epochs: tuple[Epoch, ...]
    generations: tuple[Generation, ...]
    step: StepFacts | None
    """One pipelined step; None without stages, or before a step has ended."""
    warnings: tuple[str, ...]
    """Problems that ranks survived, e.g. a damaged checkpoint."""
    planned: Planned | None = None
    """None if the planner did not choose the layout."""
    ended_early: str = ""
    """Why the run ended before its last epoch; empty if it did not."""

    @property
    def finished(self) -> bool:
        """Whether the last generation reached its end."""
        return self.generations[-1].finished

    @property
    def exact(self) -> bool | None:
        """Whether every epoch saw every row exactly once; None before the first epoch's end."""
        return all(epoch.exact for epoch in self.epochs) if self.epochs else None
