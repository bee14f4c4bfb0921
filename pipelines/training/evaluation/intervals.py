"""95 % confidence intervals of held-out metrics, from the metrics alone. Pure; sees no row.

    accuracy   Wilson's score interval of a share. Source: Wilson, JASA 22 (1927), pages 209-212
    auc        Hanley and McNeil's standard error of the area under the ROC curve. Source: Radiology 143 (1982), pages 29-36

Other metrics have no interval here: theirs needs the spread over rows, which the metrics do not hold. To compare two models on the same
rows, use the paired comparison: its interval is far narrower than the difference of these two.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sparkring.pipelines.training.evaluation.totals import Metrics

Z = 1.959964
"""The normal distribution's 97.5 % quantile."""


class Interval(NamedTuple):
    """A metric and where it lies with 95 % confidence, if other rows of the same kind were held out."""

    value: float
    low: float
    high: float


def intervals(metrics: Metrics) -> dict[str, Interval]:
    """The intervals of those metrics that have one.

    Args:
        metrics: Metrics of a split, as ``evaluation.json`` holds them for a model.
    """
    found = {}
    if "accuracy" in metrics:
        found["accuracy"] = Interval(metrics["accuracy"], *share_interval(metrics["accuracy"], count=metrics["rows"]))
    auc = metrics.get("auc")
    if auc is not None and not math.isnan(auc):
        positives = metrics["positives"]
        found["auc"] = Interval(auc, *auc_interval(auc, positives=positives, negatives=metrics["rows"] - positives))
    return found


def share_interval(share: float, *, count: int) -> tuple[float, float]:
    """Wilson's interval of ``share`` of ``count`` rows; unlike the normal one it is right near 0 and 1 too."""
    centre, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
    spread = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return (centre - spread) / scale, (centre + spread) / scale


def auc_interval(auc: float, *, positives: int, negatives: int) -> tuple[float, float]:
    """The normal interval by Hanley and McNeil's standard error, cut off at 0 and 1."""
    twice_above = auc / (2 - auc)  # two positives both above one negative
    twice_below = 2 * auc * auc / (1 + auc)  # one positive above two negatives
    square = auc * auc
    variance = auc * (1 - auc) + (positives - 1) * (twice_above - square) + (negatives - 1) * (twice_below - square)
    spread = Z * math.sqrt(max(variance, 0.0) / (positives * negatives))
    return max(0.0, auc - spread), min(1.0, auc + spread)
