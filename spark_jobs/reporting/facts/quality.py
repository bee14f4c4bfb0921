"""The facts of ``evaluation.json``: the network beside its baselines on the same held-out rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from sparkring.conf.schema import TEXT_TASKS
from sparkring.pipelines.training.evaluation.metrics import BinaryMetrics
from sparkring.pipelines.training.evaluation.regression import RegressionMetrics
from sparkring.spark_jobs.reporting.facts.words import measure, metric

Found = TypeVar("Found", BinaryMetrics, RegressionMetrics)
"""The metrics of a task."""


@dataclass(frozen=True)
class MetricColumn:
    """One metric of the table."""

    metric: str
    """A field of the metrics."""
    title: str
    lower_is_better: bool
    own_units: bool = False
    """Whether it is in the label's units, in which it may have any size."""

    def text(self, value: float) -> str:
        """A value of this metric."""
        return measure(value) if self.own_units else metric(value)


METRICS = (MetricColumn("loss", "loss", lower_is_better=True), MetricColumn("auc", "ROC AUC", lower_is_better=False),
           MetricColumn("average_precision", "average precision", lower_is_better=False),
           MetricColumn("calibration_error", "calibration error", lower_is_better=True))
ERRORS = (MetricColumn("r2", "R2", lower_is_better=False), MetricColumn("rmse", "RMSE", lower_is_better=True, own_units=True),
          MetricColumn("mae", "MAE", lower_is_better=True, own_units=True))

_TITLES = {"network": "Network", "logistic_regression": "Logistic regression", "ridge": "Ridge regression", "mean": "Mean",
           "base_rate": "Base rate"}


@dataclass(frozen=True, kw_only=True)
class ModelQuality(Generic[Found]):
    """One model's exact metrics."""

    key: str
    """Its name in ``evaluation.json``."""
    title: str
    metrics: Found

    def figure(self, column: MetricColumn) -> float:
        """Its value of a metric."""
        return float(getattr(self.metrics, column.metric))


@dataclass(frozen=True, kw_only=True)
class QualityFacts(Generic[Found]):
    """Everything that the report says about the quality of a model that is compared with baselines."""

    columns: ClassVar[tuple[MetricColumn, ...]]
    """All metrics of the table."""
    decisive: ClassVar[tuple[MetricColumn, ...]]
    """The metrics by which a model is better than another, the best-known one first."""

    split: str
    dataset_version: int
    weights_sha256: str
    """The weights of the network that was evaluated."""
    models: tuple[ModelQuality[Found], ...]
    """The network first, then the baselines."""

    @property
    def network(self) -> Found:
        """The trained network's metrics."""
        return self.models[0].metrics

    @property
    def baselines(self) -> tuple[ModelQuality[Found], ...]:
        """Predictions without a network, for comparison."""
        return self.models[1:]

    @property
    def beaten(self) -> bool:
        """Whether the network is better than every baseline in all decisive metrics."""
        return all(self.beats(other, column) for other in self.baselines for column in self.decisive)

    def beats(self, other: ModelQuality[Any], column: MetricColumn) -> bool:
        """Whether the network is better than another model in ``column``."""
        mine, theirs = self.models[0].figure(column), other.figure(column)
        return mine < theirs if column.lower_is_better else mine > theirs

    def rival(self, column: MetricColumn) -> ModelQuality[Found]:
        """The baseline that is best in ``column``."""
        pick: Callable[..., ModelQuality[Found]] = min if column.lower_is_better else max
        return pick(self.baselines, key=lambda other: other.figure(column))

    def best(self, column: MetricColumn) -> tuple[str, ...]:
        """Keys of the models that are best in ``column``; none if no figure is finite."""
        figures = {model.key: model.figure(column) for model in self.models}
        finite = {key: value for key, value in figures.items() if math.isfinite(value)}
        pick: Callable[..., float] = min if column.lower_is_better else max
        return tuple(key for key, value in finite.items() if value == pick(finite.values()))


class BinaryQuality(QualityFacts[BinaryMetrics]):
    """The quality of a model of a 0 / 1 label."""

    columns = METRICS
    decisive = (METRICS[1], METRICS[0])


class RegressionQuality(QualityFacts[RegressionMetrics]):
    """The quality of a model of a number."""

    columns = ERRORS
    decisive = ERRORS[:2]


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
    """Read the parsed ``evaluation.json`` of a model of classes or tokens.

    Raises:
        KeyError, TypeError, ValueError: it is not one, or lacks the network or the base rate.
    """
    tokens = document["task"] in TEXT_TASKS
    metrics = ("loss", "accuracy", "bits_per_byte") if document["task"] == "next_token" else ("loss", "accuracy")
    models = {_TITLES[key]: {name: float(document[key][name]) for name in ("rows", *metrics)} for key in ("network", "base_rate")}
    return MeanQuality(split=document["split"], dataset_version=document["dataset_version"], weights_sha256=document["weights_sha256"],
                       counted="tokens" if tokens else "rows", metrics=metrics, models=models,
                       rows_by_class=tuple(map(sum, document["network"].get("confusion", ()))))


def quality_facts(document: Mapping[str, Any]) -> BinaryQuality | RegressionQuality:
    """Read the parsed ``evaluation.json`` of a binary model or a regression.

    Raises:
        KeyError, TypeError, ValueError: it is not one, or lacks the network or the baseline that needs no features.
    """
    said: dict[str, Any] = {key: document[key] for key in ("split", "dataset_version", "weights_sha256")}
    if document.get("task") == "regression":
        return RegressionQuality(models=_models(document, RegressionMetrics, needed=("network", "mean")), **said)
    return BinaryQuality(models=_models(document, BinaryMetrics, needed=("network", "base_rate")), **said)


def _models(document: Mapping[str, Any], kind: type[Found], *, needed: tuple[str, ...]) -> tuple[ModelQuality[Found], ...]:
    return tuple(ModelQuality(key=key, title=title, metrics=_metrics(document[key], kind)) for key, title in _TITLES.items()
                 if key in document or key in needed)


def _metrics(document: Mapping[str, Any], kind: type[Found]) -> Found:
    """Read metrics from JSON, where null stands for NaN: the value of a metric that labels which are all alike do not define."""
    return kind.model_validate({key: math.nan if value is None else value for key, value in document.items()})
