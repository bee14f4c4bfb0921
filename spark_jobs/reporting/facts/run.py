"""What the report says about a training run, as plain data; ``run_reader.py`` computes it from events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkring.spark_jobs.reporting.facts.step import StepFacts
from sparkring.spark_jobs.reporting.facts.thinning import Band, Curve


@dataclass(frozen=True, kw_only=True)
class TimeSpent:
    """TimeSpent by what they were spent on."""

    data: float
    """Waiting for rows."""
    compute: float
    """Forward, backward and optimizer."""
    comm: float
    """Waiting for other ranks and for the sum of gradients."""
    other: float = 0.0
    """All else between a rank's first and last event: validation, checkpoints."""

    @property
    def steps(self) -> float:
        """TimeSpent inside training steps."""
        return self.data + self.compute + self.comm

    @property
    def total(self) -> float:
        """All of them."""
        return self.steps + self.other


@dataclass(frozen=True)
class RankTime:
    """One bar: a rank, or the mean of neighbouring ranks."""

    label: str
    hosts: tuple[str, ...]
    """Where it ran, or they."""
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
    """Whether the rows seen add up to the split's digest: each row exactly once."""
    validation: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One life of the ring."""

    number: int
    size: int
    hosts: tuple[str, ...]
    """Distinct hosts, in order of rank."""
    from_epoch: int
    """Epoch it went on from, counted from 1."""
    from_step: int
    finished: bool
    """Whether rank 0 reached the end."""


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Train loss per step."""

    raw: Band
    """Single steps, but for small ones."""
    smooth: Curve
    """Mean over the rows of neighbouring steps, small ones included."""
    epoch_ends: tuple[float, ...]
    """Step numbers after which an epoch ended, the last one left out."""
    small: int
    """Steps of so few rows that their own loss says little, such as the last of an epoch."""
    not_finite: int
    """Steps whose loss was infinite or not a number; they are not drawn."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Mean seconds of a rank per step, over the steps; all four of equal length."""

    x: tuple[float, ...]
    data: tuple[float, ...]
    compute: tuple[float, ...]
    comm: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What the planner said of the layout that it chose, beside the clock; of the last generation that says so."""

    predicted_s: float
    measured_s: float
    """Of a step, median of some."""
    warning: str
    """In words, where they are far apart."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Everything that the report says about training."""

    dataset_version: int
    size: int
    device: str
    lanes: int
    batch_rows: int
    """Rows of a step over all ranks."""
    reduction: str
    steps: int
    """Distinct optimizer steps."""
    repeated_steps: int
    """Steps done again after a restart."""
    started: float
    """TimeSpent since 1970."""
    wall_s: float
    """TimeSpent between the first and the last event of each generation, added up."""
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
    """One step of a model in stages; None where there are no stages, or no step has ended."""
    warnings: tuple[str, ...]
    """What ranks found wrong and went on without, e.g. a damaged checkpoint."""
    planned: Planned | None = None
    """None where nobody planned the layout."""

    @property
    def finished(self) -> bool:
        """Whether the last generation reached its end."""
        return self.generations[-1].finished

    @property
    def exact(self) -> bool | None:
        """Whether every epoch saw every row exactly once; None before the first epoch's end."""
        return all(epoch.exact for epoch in self.epochs) if self.epochs else None
