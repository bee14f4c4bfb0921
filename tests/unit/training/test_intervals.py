"""Confidence intervals of metrics against published figures and against samples."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from sparkring.pipelines.training.evaluation.intervals import intervals


def test_the_interval_of_an_accuracy_is_wilsons() -> None:
    found = intervals({"rows": 10, "accuracy": 0.8})["accuracy"]
    assert found == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    assert intervals({"rows": 10, "accuracy": 1.0})["accuracy"] == pytest.approx((1.0, 0.7225, 1.0), abs=1e-4)


def test_the_interval_of_an_auc_holds_that_of_all_rows_in_about_95_of_100_samples() -> None:
    random = np.random.default_rng(1)
    label = random.random(40_000) < 0.3
    score = label * 0.8 + random.normal(size=label.size)
    truth = roc_auc_score(label, score)
    hits = 0
    for _ in range(400):
        rows = random.integers(label.size, size=300)
        found = intervals({"rows": 300, "positives": int(label[rows].sum()), "auc": roc_auc_score(label[rows], score[rows])})["auc"]
        hits += found.low <= truth <= found.high
    assert 0.92 <= hits / 400 <= 0.98


def test_a_metric_without_an_interval_has_none() -> None:
    assert intervals({"rows": 5, "loss": 0.3, "auc": float("nan"), "positives": 5}) == {}
