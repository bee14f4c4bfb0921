"""Exact metrics: numbers worked by hand, edge cases, and no mean of means."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import auc

from sparkring.errors import DatasetError, NotFinite
from sparkring.pipelines.data.dataset.preprocessing import TokensFeature
from sparkring.pipelines.training.evaluation.metrics import binary_metrics
from sparkring.pipelines.training.evaluation.totals import token_metrics


def _sample(rows: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    random = np.random.default_rng(1)
    probability = random.random(rows)
    return probability, (random.random(rows) < probability).astype(np.int64)


def test_figures_of_four_rows_worked_by_hand() -> None:
    found = binary_metrics([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    assert (found.rows, found.positives) == (4, 2)
    assert found.loss == pytest.approx(-(math.log(0.9) + math.log(0.6) + math.log(0.35) + math.log(0.8)) / 4)
    assert found.auc == pytest.approx(3 / 4)  # of four (positive, negative) pairs one is ranked wrongly: 0.35 < 0.4
    assert found.average_precision == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    # Each row has a bin of its own: |0.1 - 0|, |0.4 - 0|, |0.35 - 1|, |0.8 - 1|
    assert found.calibration_error == pytest.approx((0.1 + 0.4 + 0.65 + 0.2) / 4)
    assert found.roc.fpr == (0.0, 0.0, 0.5, 0.5, 1.0)
    assert found.roc.tpr == (0.0, 0.5, 0.5, 1.0, 1.0)


def test_a_constant_prediction_ranks_nothing_and_costs_the_entropy() -> None:
    found = binary_metrics(np.full(100, 0.3), [1] * 30 + [0] * 70)
    assert found.auc == 0.5
    assert found.loss == pytest.approx(-(0.3 * math.log(0.3) + 0.7 * math.log(0.7)))
    assert found.calibration_error == pytest.approx(0.0, abs=1e-12)
    assert [(part.rows, part.observed) for part in found.calibration] == [(100, pytest.approx(0.3))]


def test_calibration_bins_hold_every_row_once_and_the_last_holds_one() -> None:
    probability, label = _sample(5000)
    found = binary_metrics(np.append(probability, 1.0), np.append(label, 1))
    assert sum(part.rows for part in found.calibration) == 5001
    assert found.calibration[-1].upper == 1.0
    assert all(part.lower <= part.predicted <= part.upper for part in found.calibration)


def test_thinning_keeps_the_shape_of_the_roc_curve() -> None:
    found = binary_metrics(*_sample(50_000))
    assert len(found.roc.fpr) <= 200
    assert (found.roc.fpr[0], found.roc.tpr[0], found.roc.fpr[-1], found.roc.tpr[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert auc(found.roc.fpr, found.roc.tpr) == pytest.approx(found.auc, abs=1e-3)


def test_the_mean_over_unequal_parts_would_be_another_figure() -> None:
    probability, label = _sample(1000)
    parts = [slice(0, 900), slice(900, 1000)]
    mean_of_means = np.mean([binary_metrics(probability[part], label[part]).loss for part in parts])
    assert abs(mean_of_means - binary_metrics(probability, label).loss) > 1e-3


def test_certainty_costs_much_but_not_infinitely_much() -> None:
    assert binary_metrics([1.0, 0.0], [0, 1]).loss == pytest.approx(-math.log(np.finfo(np.float64).eps), rel=1e-6)
    assert binary_metrics([0.0, 1.0], [0, 1]).loss == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("label", "average_precision"), [
    pytest.param(0, math.nan, id="only negatives"),
    pytest.param(1, 1.0, id="only positives"),
])
def test_what_one_class_leaves_undefined_is_nan_and_null_in_json(label: int, average_precision: float) -> None:
    found = binary_metrics([0.2, 0.7], [label, label])
    assert math.isnan(found.auc)
    assert found.average_precision == pytest.approx(average_precision, nan_ok=True)
    assert found.roc.fpr == ()
    assert json.loads(found.model_dump_json())["auc"] is None


@pytest.mark.parametrize(("probability", "label", "message"), [
    pytest.param([], [], "at least one row", id="no rows"),
    pytest.param([0.5, 0.5], [1], r"shapes \(2,\) and \(1,\)", id="unequal lengths"),
    pytest.param([0.5, 0.5], [1, 2], "found 2 in 1 rows", id="a label that is neither 0 nor 1"),
    pytest.param([0.5, 1.5], [1, 0], "found 1.5 in 1 rows", id="a probability above 1"),
])
def test_what_cannot_be_judged_is_refused(probability: list[float], label: list[int], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        binary_metrics(probability, label)


def test_an_answer_that_is_nan_is_the_network_s_fault_and_not_the_data_s() -> None:
    with pytest.raises(NotFinite, match="NaN for 1 of 2 rows: it diverged"):
        binary_metrics([0.5, math.nan], [1, 0])


def test_a_split_without_a_token_to_predict_says_so() -> None:
    tokens = TokensFeature.model_validate({"column": "tokens", "length": 4, "vocabulary": 258, "end_id": 256, "pad_id": 257,
                                           "tokenizer_sha256": None, "tokens": {"test": 4}, "text_bytes": {"test": 4}})
    assert token_metrics(nats=6.0, hits=1, count=3, tokens=tokens, split="test")["loss"] == 2.0
    with pytest.raises(DatasetError, match="the test split has no token to predict"):
        token_metrics(nats=0.0, hits=0, count=0, tokens=tokens, split="test")
