"""The facts of ``evaluation.json``: the network beside its baselines on the same held-out rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparkring.pipelines.training.evaluation.metrics import BinaryMetrics


@dataclass(frozen=True)
class MetricColumn:
    """One metric of the table."""

    metric: Literal["loss", "auc", "average_precision", "calibration_error"]
    title: str
    lower_is_better: bool


METRICS = (MetricColumn("loss", "Loss", lower_is_better=True), MetricColumn("auc", "ROC AUC", lower_is_better=False),
           MetricColumn("average_precision", "Average precision", lower_is_better=False),
           MetricColumn("calibration_error", "Calibration error", lower_is_better=True))

_TITLES = {"network": "Network", "logistic_regression": "Logistic regression", "base_rate": "Base rate"}


@dataclass(frozen=True, kw_only=True)
class ModelQuality:
    """One model's exact metrics."""

    key: str
    """Its name in ``evaluation.json``."""
    title: str
    metrics: BinaryMetrics


@dataclass(frozen=True, kw_only=True)
class QualityFacts:
    """Everything that the report says about a binary model's quality."""

    split: str
    dataset_version: int
    weights_sha256: str
    """The weights of the network that was evaluated."""
    models: tuple[ModelQuality, ...]
    """The network first, then the baselines."""

    @property
    def network(self) -> BinaryMetrics:
        """The trained network's metrics."""
        return self.models[0].metrics

    @property
    def baselines(self) -> tuple[ModelQuality, ...]:
        """Predictions without a network, for comparison."""
        return self.models[1:]

    @property
    def beaten(self) -> bool:
        """Whether the network has the lower loss and the higher AUC against every baseline."""
        return all(self.network.loss < other.metrics.loss and self.network.auc > other.metrics.auc for other in self.baselines)

    def best(self, column: MetricColumn) -> tuple[str, ...]:
        """Keys of the models that are best in ``column``; none if no figure is finite."""
        figures = {model.key: getattr(model.metrics, column.metric) for model in self.models}
        finite = {key: value for key, value in figures.items() if math.isfinite(value)}
        pick: Callable[..., float] = min if column.lower_is_better else max
        return tuple(key for key, value in finite.items() if value == pick(finite.values()))


@dataclass(frozen=True, kw_only=True)
class MeanQuality:
    """The quality of a network that predicts classes or tokens; the report draws no pictures of it."""

    split: str
    dataset_version: int
    weights_sha256: str
    """The weights of the network that was evaluated."""
    counted: str
    """The unit of a prediction: ``rows`` or ``tokens``."""
    metrics: tuple[str, ...]
    """Columns of the table, e.g. ``loss``."""
    models: Mapping[str, Mapping[str, float]]
    """By title, the network first: the metrics, and ``rows``."""
    rows_by_class: tuple[int, ...] = ()
    """Evaluated rows of each class, in the order of the classes; none of tokens."""

    @property
    def rows(self) -> int:
        """Predictions that were evaluated."""
        return int(self.models[_TITLES["network"]]["rows"])


def mean_quality(document: Mapping[str, Any]) -> MeanQuality:
    """Read the parsed ``evaluation.json`` of a multiclass or next-token model.

    Raises:
        KeyError, TypeError, ValueError: it is not one, or lacks the network or the base rate.
    """
    tokens = document["task"] == "next_token"
    metrics = ("loss", "accuracy", "bits_per_byte") if tokens else ("loss", "accuracy")
    models = {_TITLES[key]: {name: float(document[key][name]) for name in ("rows", *metrics)} for key in ("network", "base_rate")}
    return MeanQuality(split=document["split"], dataset_version=document["dataset_version"], weights_sha256=document["weights_sha256"],
                       counted="tokens" if tokens else "rows", metrics=metrics, models=models,
                       rows_by_class=tuple(map(sum, document["network"].get("confusion", ()))))


def quality_facts(document: Mapping[str, Any]) -> QualityFacts:
    """Read the parsed ``evaluation.json``.

    Raises:
        KeyError, TypeError, ValueError: it is not one, or lacks the network or a baseline.
    """
    models = tuple(ModelQuality(key=key, title=title, metrics=_metrics(document[key])) for key, title in _TITLES.items())
    return QualityFacts(split=document["split"], dataset_version=document["dataset_version"],
                        weights_sha256=document["weights_sha256"], models=models)


def _metrics(document: Mapping[str, Any]) -> BinaryMetrics:
    """Read metrics from JSON, where null stands for NaN: the value of a metric that labels of one class do not define."""
    return BinaryMetrics.model_validate({key: math.nan if value is None else value for key, value in document.items()})
