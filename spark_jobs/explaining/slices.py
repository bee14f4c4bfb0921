"""The groups of rows on which a model is worse than on the rest, beyond chance. Pure.

    z = (mean loss of the group - mean loss of the rest) / sqrt(variance / rows of the group + variance / rows of the rest)

Each group of at least ``LEAST_ROWS`` rows is one comparison (Welch's, one-sided; so many rows make the means normal). There are hundreds
of them, so their p-values are corrected: were no group harder than the rest, one would be named in 5 % of evaluations at most.
Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979); it asks for no
independence, and groups overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sparkring.conf.schema import Task
from sparkring.spark_jobs.explaining.documents import Group, Measure, Slices
from sparkring.spark_jobs.explaining.groups import Grouping
from sparkring.spark_jobs.explaining.network import Judged, Values

LEAST_ROWS = 100
LEVEL = 0.05
"""Probability of naming any group if none is harder than the rest."""
NAMED = 10
"""Groups that are named as the worst."""
KEPT = 50
"""Groups that are kept of a feature, the largest."""
MEASURES: dict[Task, Measure] = {"binary": "auc", "multiclass": "error_rate", "regression": "mae"}


@dataclass(frozen=True)
class _Found:
    """The groups of a feature that are large enough."""

    grouping: Grouping
    kept: NDArray[np.int64]
    """(groups,): their places among the names."""
    rows: NDArray[np.int64]
    loss: Values
    rest: Values
    p_values: Values


def find_slices(judged: Judged, labels: Values, groupings: Sequence[Grouping], *, task: Task, split_rows: int) -> Slices:
    """Compare each group with the rest.

    Args:
        judged: The rows' losses and scores, (rows,) each.
        labels: (rows,)
        groupings: The rows' groups.
        task: The model's.
        split_rows: Rows of the split that they are of.
    """
    found = [_compared(grouping, judged.losses) for grouping in groupings]
    p_values = iter(holm(np.concatenate([each.p_values for each in found])) if found else ())
    measure = _measure(judged, labels, task)
    groups = [[_group(each, place, next(p_values), measure) for place in range(len(each.kept))] for each in found]
    worse = sorted((group for of_feature in groups for group in of_feature if group.p_value < LEVEL),
                   key=lambda group: group.rest - group.loss)
    distinct = tuple({(group.rows, group.loss): group for group in worse}.values())  # two features may cut off the very same rows
    largest = [sorted(of_feature, key=lambda group: -group.rows)[:KEPT] for of_feature in groups]
    return Slices(rows=len(labels), split_rows=split_rows, loss=float(judged.losses.mean()), measure_name=MEASURES[task],
                  measure=measure(np.ones(len(labels), bool)), least_rows=LEAST_ROWS, tested=sum(map(len, groups)), worse=len(worse),
                  worst=distinct[:NAMED], groups=tuple(group for of_feature in largest for group in of_feature))


def holm(p_values: Values) -> Values:
    """Correct p-values for their number; a corrected one below a level holds at that level for all together."""
    order = np.argsort(p_values)
    raised = np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1))
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(raised, 1.0)
    return corrected


def auc(scores: Values, positive: NDArray[np.bool_]) -> float | None:
    """Area under the ROC curve, ties counted half; None if there are labels of one kind only."""
    negatives = np.sort(scores[~positive])
    if not len(negatives) or not positive.any():
        return None
    below = sum(np.searchsorted(negatives, scores[positive], side=side).mean() for side in ("left", "right"))
    return float(below / (2 * len(negatives)))


def _compared(grouping: Grouping, losses: Values) -> _Found:
    total, names = len(losses), len(grouping.names)
    apart = losses - losses.mean()  # near 0, so that the sums of squares below lose nothing
    rows, sums, squares = (np.bincount(grouping.places, weights, minlength=names).astype(np.float64)
                           for weights in (None, apart, apart**2))
    kept = np.flatnonzero((rows >= LEAST_ROWS) & (total - rows >= LEAST_ROWS))
    inside, outside = _moments(rows[kept], sums[kept], squares[kept]), _moments(
        total - rows[kept], -sums[kept], (apart**2).sum() - squares[kept])
    error = np.sqrt(inside[1] / rows[kept] + outside[1] / (total - rows[kept]))
    z = np.divide(inside[0] - outside[0], error, out=np.zeros(len(kept)), where=error > 0)
    return _Found(grouping, kept, rows[kept].astype(np.int64), inside[0] + losses.mean(), outside[0] + losses.mean(),
                  np.array([NormalDist().cdf(-each) for each in z]))


def _moments(rows: Values, sums: Values, squares: Values) -> tuple[Values, Values]:
    """Mean and variance of each group."""
    mean = sums / rows
    return mean, np.maximum(squares - rows * mean**2, 0.0) / (rows - 1)


def _group(found: _Found, place: int, p_value: float, measure: Callable[[NDArray[np.bool_]], float | None]) -> Group:
    number = int(found.kept[place])
    return Group(feature=found.grouping.feature, value=found.grouping.names[number], rows=int(found.rows[place]),
                 loss=float(found.loss[place]), rest=float(found.rest[place]), p_value=float(p_value),
                 measure=measure(found.grouping.places == number))


def _measure(judged: Judged, labels: Values, task: Task) -> Callable[[NDArray[np.bool_]], float | None]:
    """The task's measure of some rows."""
    positive = labels == 1
    if task == "binary":
        return lambda chosen: auc(judged.scores[chosen], positive[chosen])
    return lambda chosen: float(judged.scores[chosen].mean())
