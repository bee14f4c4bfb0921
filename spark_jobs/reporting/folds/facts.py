"""What the folds of a cross-validation say together: mean and spread of each held-out metric. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from sparkring.spark_jobs.reporting.facts.words import count, metric


@dataclass(frozen=True, kw_only=True)
class FoldResult:
    """The run that validated on one fold."""

    fold: int
    run: str
    rows: int
    """Of the fold."""
    epochs: int
    steps: int
    metrics: Mapping[str, float | None]
    """Held-out metrics of the epoch that became the model; None for one that is not finite, for which JSON has no number."""


@dataclass(frozen=True)
class Spread:
    """One metric over the folds; None where a fold's value is not finite."""

    mean: float | None
    """Each fold counts once, however many rows it has."""
    deviation: float | None
    """The sample standard deviation: of k folds, the root of the squared distances' sum over k - 1."""


def spreads(folds: Sequence[FoldResult]) -> dict[str, Spread]:
    """Each metric that all folds have, in the order of the first fold's.

    Args:
        folds: At least two.
    """
    names = [name for name in folds[0].metrics if all(name in each.metrics for each in folds)]
    return {name: spread([each.metrics[name] for each in folds]) for name in names}


def spread(values: Sequence[float | None]) -> Spread:
    """Mean and sample standard deviation of at least two values."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return Spread(fmean(finite), stdev(finite)) if len(finite) == len(values) else Spread(None, None)


def verdict(folds: Sequence[FoldResult]) -> str:
    """One paragraph, made from the numbers."""
    rows, found = sum(each.rows for each in folds), spreads(folds)
    words = ", ".join(f"{name} {metric(each.mean)} \u00b1 {metric(each.deviation)}" for name, each in found.items())
    return (f"{count(rows)} rows in {len(folds)} folds, each row validated once by a model that was not trained on it. "
            f"Mean and sample standard deviation over the folds: {words}.")
