"""Regression: losses worked by hand, and metrics from sums that equal scikit-learn's on all rows, also far from 0."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from sparkring.conf.schema import RegressionLoss
from sparkring.errors import ConfigError, DatasetError, NotFinite
from sparkring.models.losses import error_sum
from sparkring.pipelines.data.dataset.row_schema import Standardisation
from sparkring.pipelines.training.evaluation.regression import (
    NUM_SUMS,
    PREDICTION_BINS,
    RESIDUAL_BINS,
    Floats,
    RegressionMetrics,
    all_sums,
    error_figures,
    regression_metrics,
)

PLAIN = Standardisation(mean=0.0, std=1.0)


def _sample(*, centre: float, rows: int = 5000) -> tuple[Floats, Floats, Standardisation]:
    """Predictions and labels around ``centre``, and a label fitted on other rows."""
    random = np.random.default_rng(1)
    labels = centre + random.normal(2, 3, rows)
    return labels + random.normal(0.5, 1, rows), labels, Standardisation(mean=centre + 0.5, std=3.25)


def _metrics(predicted: Floats, labels: Floats, fitted: Standardisation) -> RegressionMetrics:
    return regression_metrics(all_sums((predicted - fitted.mean) / fitted.std, (labels - fitted.mean) / fitted.std), fitted)


@pytest.mark.parametrize(("loss", "expected"), [
    pytest.param("squared", 0.25 + 0.0 + 9.0, id="squared"),
    pytest.param("absolute", 0.5 + 0.0 + 3.0, id="absolute"),
    pytest.param("huber", 0.25 / 2 + 0.0 + 2.0 * (3.0 - 2.0 / 2), id="huber of delta 2"),
])
def test_the_loss_of_three_rows_is_the_sum_worked_by_hand(loss: RegressionLoss, expected: float) -> None:
    predictions, labels = torch.tensor([0.5, 1.0, -1.0]), torch.tensor([1.0, 1.0, 2.0])
    assert float(error_sum(predictions, labels, loss=loss, huber_delta=2.0)) == pytest.approx(expected)
    assert float(error_sum(predictions.bfloat16(), labels, loss=loss, huber_delta=2.0)) == pytest.approx(expected)  # these are exact in it
    assert float(error_sum(predictions[:0], labels[:0], loss=loss, huber_delta=2.0)) == 0


def test_outputs_of_another_shape_are_refused_instead_of_compared_with_every_label() -> None:
    with pytest.raises(ConfigError, match=r"outputs of shape \(3, 1\) for 3 rows"):
        error_sum(torch.zeros(3, 1), torch.zeros(3), loss="squared", huber_delta=1.0)


@pytest.mark.parametrize("centre", [pytest.param(0.0, id="near 0"), pytest.param(1e9, id="around a billion")])
def test_the_metrics_are_scikit_learn_s_of_all_rows(centre: float) -> None:
    predicted, labels, fitted = _sample(centre=centre)
    found = _metrics(predicted, labels, fitted)
    assert found.rows == 5000
    assert found.mse == pytest.approx(mean_squared_error(labels, predicted), rel=1e-6)
    assert found.rmse == pytest.approx(math.sqrt(mean_squared_error(labels, predicted)), rel=1e-6)
    assert found.mae == pytest.approx(mean_absolute_error(labels, predicted), rel=1e-6)
    assert found.r2 == pytest.approx(r2_score(labels, predicted), rel=1e-6)


def test_control_sums_of_labels_that_are_not_centred_lose_r2_around_a_billion() -> None:
    predicted, labels, _ = _sample(centre=1e9)
    found = error_figures(all_sums(predicted, labels), PLAIN)["r2"]
    assert math.isnan(found) or abs(found - r2_score(labels, predicted)) > 0.1


def test_uneven_parts_add_up_to_the_whole_and_their_mean_would_be_another_figure() -> None:
    predicted, labels, fitted = _sample(centre=0.0)
    parts = [slice(0, 4900), slice(4900, 4901), slice(4901, 4901), slice(4901, 5000)]
    summed: Floats = reduce(np.add, (all_sums(predicted[part], labels[part]) for part in parts))
    assert summed == pytest.approx(all_sums(predicted, labels))
    assert regression_metrics(summed, fitted).r2 == pytest.approx(regression_metrics(all_sums(predicted, labels), fitted).r2)
    averaged = np.mean([r2_score(labels[part], predicted[part]) for part in (parts[0], parts[3])])
    assert abs(averaged - r2_score(labels, predicted)) > 1e-3


def test_both_pictures_hold_each_row_once_in_the_labels_units() -> None:
    predicted, labels, fitted = _sample(centre=1e9)
    predicted[:7] += 100.0
    found = _metrics(predicted, labels, fitted)
    assert sum(part.rows for part in found.bins) == 5000 == sum(found.residuals.rows) + found.residuals.below + found.residuals.above
    assert found.residuals.below >= 7
    assert len(found.residuals.rows) <= RESIDUAL_BINS
    assert len(found.bins) <= PREDICTION_BINS
    assert all(200 < part.rows < 300 for part in found.bins)
    assert sum(part.observed * part.rows for part in found.bins) / 5000 == pytest.approx(labels.mean(), rel=1e-12)
    edges = found.residuals.lower + found.residuals.width * np.arange(len(found.residuals.rows) + 1)
    counted = np.histogram(labels - predicted, edges)[0]
    assert np.abs(counted - found.residuals.rows).max() <= 1  # a residual within rounding of an edge


def test_residuals_of_a_fiftieth_of_the_deviation_still_make_a_picture() -> None:
    random = np.random.default_rng(2)
    labels = random.normal(0, 1, 5000)
    found = _metrics(labels + random.normal(0, 0.02, 5000), labels, PLAIN)
    assert len(found.residuals.rows) > 15
    assert found.residuals.lower == pytest.approx(-0.0515, abs=0.02)


def test_labels_that_are_all_alike_leave_r2_undefined() -> None:
    found = _metrics(np.array([6.9, 7.1, 7.3]), np.full(3, 7.1), Standardisation(mean=0.3, std=0.7))
    assert found.r2 is None
    assert found.mae == pytest.approx(0.4 / 3)


def test_without_rows_or_with_a_prediction_that_is_not_finite_there_are_no_metrics() -> None:
    with pytest.raises(DatasetError, match="at least one row"):
        regression_metrics(np.zeros(NUM_SUMS), PLAIN)
    for strange in (math.nan, math.inf):
        with pytest.raises(NotFinite, match="not all finite: it diverged"):
            _metrics(np.array([1.0, strange]), np.array([1.0, 2.0]), PLAIN)
