"""Exact metrics of a probability for a 0 / 1 label, over all rows at once.

Nothing here is averaged over batches or ranks: the caller brings every row's probability and label together, and each
figure equals the one that a single process would get. With y the label and p the probability of label 1, N rows:

    loss               -1/N sum(y ln p + (1 - y) ln(1 - p)), in nats; p is kept within [eps, 1 - eps] of float64
    auc                P(p of a random positive > p of a random negative), ties count half
    average_precision  sum over thresholds of (recall_k - recall_(k-1)) precision_k
    calibration_error  sum over bins of (rows of the bin / N) |mean p - mean y|: the expected calibration error
                       Source: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, equation 3

Imports no torch, no pyspark, no horovod.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict

from sparkring.errors import DatasetError, NotFinite
from sparkring.extras import extras_named

with extras_named():
    from sklearn.metrics import average_precision_score, log_loss, roc_auc_score, roc_curve

CALIBRATION_BINS = 10
ROC_POINTS = 200


class CalibrationBin(BaseModel):
    """Rows whose probability lies in [lower, upper); the last bin holds 1 too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lower: float
    upper: float
    predicted: float
    """Mean probability."""
    observed: float
    """Share of positives."""
    rows: int


class RocCurve(BaseModel):
    """Points from (0, 0) to (1, 1); empty if there is nothing to rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fpr: tuple[float, ...]
    """False positive rates, rising; at most 200."""
    tpr: tuple[float, ...]
    """True positive rates, as many."""


class BinaryMetrics(BaseModel):
    """The quality of a set of predictions; the formulas are in the module's docstring."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    positives: int
    loss: float
    auc: float
    """NaN (null in JSON) if the labels are all 0 or all 1: there is nothing to rank."""
    average_precision: float
    """NaN (null in JSON) if no label is 1."""
    calibration_error: float
    calibration: tuple[CalibrationBin, ...]
    """Bins that hold a row, from low to high probability."""
    roc: RocCurve


def binary_metrics(probability: ArrayLike, label: ArrayLike) -> BinaryMetrics:
    """Compute the metrics of predictions.

    Args:
        probability: Predicted probability of label 1, shape (rows,), each in [0, 1].
        label: 0 or 1, shape (rows,).
    Returns:
        The metrics; see the module's docstring.
    Raises:
        DatasetError: no rows, unequal lengths, a label that is not 0 or 1, or a probability outside [0, 1].
        NotFinite: a probability is NaN.
    """
    predicted = np.asarray(probability, dtype=np.float64)
    observed = np.asarray(label, dtype=np.float64)
    _check(predicted, observed)
    positives = int(observed.sum())
    ranked = 0 < positives < observed.size
    bins = _calibration(predicted, observed)
    return BinaryMetrics(
        rows=observed.size,
        positives=positives,
        loss=float(log_loss(observed, predicted, labels=[0, 1])),
        auc=float(roc_auc_score(observed, predicted)) if ranked else math.nan,
        average_precision=float(average_precision_score(observed, predicted)) if positives else math.nan,
        calibration_error=sum(part.rows * abs(part.predicted - part.observed) for part in bins) / observed.size,
        calibration=bins,
        roc=_roc(predicted, observed) if ranked else RocCurve(fpr=(), tpr=()))


def _check(predicted: NDArray[np.float64], observed: NDArray[np.float64]) -> None:
    if predicted.shape != observed.shape or predicted.ndim != 1 or not predicted.size:
        raise DatasetError(f"metrics need as many probabilities as labels and at least one row; found shapes {predicted.shape} "
                           f"and {observed.shape}. Give one probability and one label a row.")
    strange = observed[(observed != 0) & (observed != 1)]
    if strange.size:
        raise DatasetError(f"metrics need labels 0 or 1; found {strange[0]:g} in {strange.size} rows. Check the label column.")
    lost = int(np.isnan(predicted).sum())
    if lost:
        raise NotFinite(f"the network's answer is NaN for {lost} of {predicted.size} rows: it diverged; lower train.optimizer.lr.")
    outside = predicted[(predicted < 0) | (predicted > 1)]
    if outside.size:
        raise DatasetError(f"metrics need probabilities in [0, 1]; found {outside[0]} in {outside.size} rows. Give probabilities.")


def _calibration(predicted: NDArray[np.float64], observed: NDArray[np.float64]) -> tuple[CalibrationBin, ...]:
    """Mean prediction and share of positives in equal-width bins."""
    position = np.minimum((predicted * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    rows = np.bincount(position, minlength=CALIBRATION_BINS)
    sum_predicted = np.bincount(position, weights=predicted, minlength=CALIBRATION_BINS)
    sum_observed = np.bincount(position, weights=observed, minlength=CALIBRATION_BINS)
    return tuple(
        CalibrationBin(lower=index / CALIBRATION_BINS, upper=(index + 1) / CALIBRATION_BINS, rows=int(rows[index]),
                       predicted=float(sum_predicted[index] / rows[index]), observed=float(sum_observed[index] / rows[index]))
        for index in range(CALIBRATION_BINS) if rows[index])


def _roc(predicted: NDArray[np.float64], observed: NDArray[np.float64]) -> RocCurve:
    """The ROC curve, thinned evenly along its length so that the picture keeps its shape and both ends."""
    fpr, tpr, _ = roc_curve(observed, predicted)
    along = fpr + tpr  # grows from 0 to 2 along the curve
    kept = np.unique(np.searchsorted(along, np.linspace(0.0, 2.0, ROC_POINTS)).clip(max=along.size - 1))
    return RocCurve(fpr=tuple(fpr[kept].tolist()), tpr=tuple(tpr[kept].tolist()))
