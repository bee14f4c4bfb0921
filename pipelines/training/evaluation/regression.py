"""Exact metrics of predicted numbers, from sums over rows: ranks and Spark's tasks add theirs up, and each is divided once.

With z the standardised label of a row, e = z - its standardised prediction, s the deviation by which labels are standardised,
and N rows:

    mse, rmse   s^2 sum(e^2) / N, and its root
    mae         s sum(|e|) / N
    r2          1 - sum(e^2) / (sum(z^2) - sum(z)^2 / N)

Standardised labels are near 0 wherever the labels themselves are, so that the last difference keeps its digits.

Two pictures come from counts in 2,000 fine bins, 0.005 deviations wide: the residuals, label minus prediction, and labels by
prediction. Both are merged into few bins at the end, when it is known where the rows are.

Imports no torch, no pyspark, no horovod.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from sparkring.errors import DatasetError, NotFinite
from sparkring.pipelines.data.dataset.row_schema import Standardisation

Floats = NDArray[np.float64]

REACH, WIDTH = 5.0, 0.005
"""Fine bins reach so many deviations to both sides of 0; one more on each side holds the rows beyond."""
FINE_BINS = 2 + round(2 * REACH / WIDTH)
ERROR_SUMS = 5
"""Rows, squared errors, absolute errors, labels, squared labels."""
NUM_SUMS = ERROR_SUMS + 4 * FINE_BINS
"""Then, for each fine bin: rows by residual; and rows, predictions and labels by prediction."""
RESIDUAL_BINS, PREDICTION_BINS = 40, 20
SHOWN_SHARE = 0.99
"""Share of the residuals, from the middle, that the picture of them is wide enough for."""


class ResidualBins(BaseModel):
    """Rows by label minus prediction, in bins of equal width."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lower: float
    """Where the first bin begins."""
    width: float
    rows: tuple[int, ...]
    below: int
    """Rows left of the first bin."""
    above: int
    """Rows right of the last one."""


class PredictionBin(BaseModel):
    """Rows of similar prediction; all bins hold about as many."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    predicted: float
    """Mean prediction."""
    observed: float
    """Mean label."""
    rows: int


class RegressionMetrics(BaseModel):
    """The quality of predicted numbers, in the label's units; the formulas are in the module's docstring."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    mse: float
    rmse: float
    mae: float
    r2: float | None
    """1: without error. 0: as good as the mean of these rows. None if their labels are all alike."""
    residuals: ResidualBins
    bins: tuple[PredictionBin, ...]
    """From low to high prediction."""


def error_sums(predicted: Floats, labels: Floats) -> Floats:
    """(ERROR_SUMS,) over rows; both arguments are (rows,) and standardised."""
    error = labels - predicted
    return np.array([len(labels), error @ error, np.abs(error).sum(), labels.sum(), labels @ labels])


def all_sums(predicted: Floats, labels: Floats) -> Floats:
    """(NUM_SUMS,) over rows; both arguments are (rows,) and standardised."""
    residual, place = _bin(labels - predicted), _bin(predicted)
    counts = [np.bincount(residual, minlength=FINE_BINS), *(
        np.bincount(place, weights=weights, minlength=FINE_BINS) for weights in (None, predicted, labels))]
    return np.concatenate([error_sums(predicted, labels), *counts])


def error_figures(sums: Floats, label: Standardisation) -> dict[str, float]:
    """``mse``, ``rmse``, ``mae`` and ``r2`` (NaN if all labels are alike) from the sums of all rows, in the label's units.

    Raises:
        DatasetError: there are no rows.
        NotFinite: a prediction is not finite.
    """
    rows, squared, absolute, labels, labels_squared = sums[:ERROR_SUMS].tolist()
    if not rows:
        raise DatasetError("metrics need at least one row; check the split.")
    if not math.isfinite(squared):
        raise NotFinite("the network's answers are not all finite: it diverged; lower train.optimizer.lr.")
    spread = labels_squared - labels * labels / rows
    alike = spread <= rows * np.finfo(np.float64).eps * labels_squared  # what rounding leaves of 0
    mse = label.std ** 2 * squared / rows
    return {"mse": mse, "rmse": math.sqrt(mse), "mae": label.std * absolute / rows, "r2": math.nan if alike else 1 - squared / spread}


def regression_metrics(sums: Floats, label: Standardisation) -> RegressionMetrics:
    """The metrics from the ``all_sums`` of all rows.

    Raises:
        DatasetError: there are no rows.
        NotFinite: a prediction is not finite.
    """
    figures = {name: None if math.isnan(value) else value for name, value in error_figures(sums, label).items()}
    residuals, counts, predicted, labels = sums[ERROR_SUMS:].reshape(4, FINE_BINS)
    return RegressionMetrics.model_validate(figures | {
        "rows": int(sums[0]), "residuals": _residual_bins(residuals, label), "bins": _prediction_bins(counts, predicted, labels, label)})


def _bin(values: Floats) -> NDArray[np.int64]:
    """The number of each value's fine bin: 0 and the last one are for values beyond REACH. NaN is in any: there are no metrics then."""
    place = np.floor((np.nan_to_num(values).clip(-2 * REACH, 2 * REACH) + REACH) / WIDTH) + 1
    return place.clip(0, FINE_BINS - 1).astype(np.int64)


def _residual_bins(counts: Floats, label: Standardisation) -> ResidualBins:
    """At most RESIDUAL_BINS bins that hold the middle SHOWN_SHARE of the rows; the outermost fine bins are never among them."""
    along, outside = counts.cumsum(), counts.sum() * (1 - SHOWN_SHARE) / 2
    first = max(1, int(np.searchsorted(along, outside, side="right")))
    last = min(FINE_BINS - 2, int(np.searchsorted(along, counts.sum() - outside)))
    first = min(first, last)
    fine = -(-(last - first + 1) // RESIDUAL_BINS)
    stop = min(FINE_BINS - 1, first + fine * -(-(last - first + 1) // fine))
    rows = [int(counts[start:min(start + fine, stop)].sum()) for start in range(first, stop, fine)]
    return ResidualBins(lower=label.std * ((first - 1) * WIDTH - REACH), width=label.std * WIDTH * fine, rows=tuple(rows),
                        below=int(counts[:first].sum()), above=int(counts[stop:].sum()))


def _prediction_bins(counts: Floats, predicted: Floats, labels: Floats, label: Standardisation) -> tuple[PredictionBin, ...]:
    """Neighbouring fine bins, merged into at most PREDICTION_BINS of about equal rows."""
    middle = counts.cumsum() - counts / 2
    group = np.minimum((PREDICTION_BINS * middle / counts.sum()).astype(np.int64), PREDICTION_BINS - 1)
    rows, sums, observed = (np.bincount(group, weights=each, minlength=PREDICTION_BINS) for each in (counts, predicted, labels))
    return tuple(PredictionBin(predicted=float(label.mean + label.std * sums[place] / rows[place]),
                               observed=float(label.mean + label.std * observed[place] / rows[place]), rows=int(rows[place]))
                 for place in range(PREDICTION_BINS) if rows[place])
