"""The held-out metric by which the best epoch is chosen, as a score: the lower, the better. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sparkring.conf.schema import HeldOutMetric, Task

METRICS: Mapping[Task, tuple[HeldOutMetric, ...]] = {
    "binary": ("loss", "auc", "average_precision"), "multiclass": ("loss", "accuracy"), "regression": ("loss", "rmse", "mae", "r2"),
    "next_token": ("loss", "accuracy"), "masked_tokens": ("loss", "accuracy")}
"""The metrics that may choose, by task; ``evaluate.py`` computes them."""
_FALLING: tuple[HeldOutMetric, ...] = ("loss", "rmse", "mae")
"""Metrics of which a lower value is better."""


def score_of(validation: Mapping[str, float], metric: HeldOutMetric) -> float:
    """The score of held-out metrics; NaN if the metric is."""
    return signed(validation[metric], metric)


def signed(value: float, metric: HeldOutMetric) -> float:
    """From a metric's value to its score, and back."""
    return value if metric in _FALLING else -value
