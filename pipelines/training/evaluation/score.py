"""The held-out metric by which the best epoch is chosen, as a score: the lower, the better. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sparkring.conf.schema import HeldOutMetric, Task
from sparkring.errors import DatasetError

METRICS: Mapping[Task, tuple[HeldOutMetric, ...]] = {
    "binary": ("loss", "auc", "average_precision"), "multiclass": ("loss", "accuracy"), "regression": ("loss", "rmse", "mae", "r2"),
    "next_token": ("loss", "accuracy"), "masked_tokens": ("loss", "accuracy")}
"""The metrics that may choose, by task; ``evaluate.py`` computes them."""
_FALLING: tuple[HeldOutMetric, ...] = ("loss", "rmse", "mae")
"""Metrics of which a lower value is better."""


def score_of(validation: Mapping[str, float], metric: HeldOutMetric) -> float:
    """The score of held-out metrics; NaN if the metric is.

    Raises:
        DatasetError: the held-out rows have no such metric: there is no R2 of equal labels.
    """
    if metric not in validation:
        raise DatasetError(f"the validation split has no {metric}: all its labels are alike; set train.early_stopping.metric to loss, or "
                           "hold out other rows.")
    return signed(validation[metric], metric)


def signed(value: float, metric: HeldOutMetric) -> float:
    """From a metric's value to its score, and back."""
    return value if metric in _FALLING else -value
