"""What the report says about the data and about how good the model is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparkring.pipelines.data.dataset.manifest import DataFile, Split
from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, HashFeature, MomentPart, NumericFeature, Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField, Standardisation
from sparkring.pipelines.training.evaluation.regression import all_sums, regression_metrics
from sparkring.spark_jobs.reporting.facts.data import data_facts
from sparkring.spark_jobs.reporting.facts.quality import ERRORS, METRICS, quality_facts
from tests.support.report_samples import SPLIT_ROWS, sample_manifest


def quality(**losses: float) -> dict[str, Any]:
    models = {"network": 0.4, "logistic_regression": 0.5, "base_rate": 0.6, **losses}
    return {"split": "test", "dataset_version": 2, "weights_sha256": "w1", **{key: metrics(loss) for key, loss in models.items()}}


def metrics(loss: float, **values: Any) -> dict[str, Any]:
    return {"rows": 10, "positives": 4, "loss": loss, "auc": 1 - loss, "average_precision": 0.5, "calibration_error": 0.1,
            "calibration": [{"lower": 0.0, "upper": 0.1, "predicted": 0.05, "observed": 0.1, "rows": 10}],
            "roc": {"fpr": [0.0, 1.0], "tpr": [0.0, 1.0]}, **values}


def test_splits_are_added_up_from_their_files() -> None:
    files = tuple(DataFile(path=f"{name}.parquet", bytes=100, sha256="0", row_groups=groups, row_group_bytes=(1,) * len(groups))
                  for name, groups in (("a", (30, 20)), ("b", (50,))))
    facts = data_facts(sample_manifest(splits={"train": Split(files=files, rows=100, positives=25, rows_digest="0")}))
    train = facts.splits[0]
    assert (train.rows, train.label_share, train.files, train.row_groups, train.bytes) == (100, 0.25, 2, 3, 200)
    assert (train.smallest_group, train.largest_group) == (20, 50)


def test_an_empty_split_has_no_label_share() -> None:
    facts = data_facts(sample_manifest(splits={"test": Split(files=(), rows=0, positives=0, rows_digest="0")}))
    assert (facts.splits[0].label_share, facts.splits[0].row_groups, facts.splits[0].largest_group) == (None, 0, 0)


def test_each_column_has_its_role_and_encoding() -> None:
    columns = {column.name: column for column in data_facts(sample_manifest()).columns}
    assert [columns[name].role for name in ("row_id", "late", "distance", "carrier")] == ["row id", "label", "number", "category"]
    assert columns["distance"].encoding == f"mean 21, standard deviation 3.25; null in {900 / SPLIT_ROWS['train']:.1%} of rows"
    assert columns["carrier"].encoding == "6 ids; most frequent: UA, B6, EV"


def test_a_computed_column_says_what_it_is_made_of() -> None:
    part = MomentPart(of="at", part="hour", wave="sin", time_zone="UTC")
    hour = NumericFeature(column="at_hour_sin", moment=part, mean=0, std=1, nulls=0)
    features = Preprocessing(
        numeric=(hour,), categorical=(), buckets=(BucketFeature(column="km_bucket", of="km", edges=(1.5, 20.25)),),
        hashed=(HashFeature(column="agent_hash", of="agent", ids=5000, seed=0),), train_rows=10)
    fields = tuple(DataField(name=feature.column, dtype="int32") for feature in (*features.numeric, *features.with_ids))
    columns = data_facts(sample_manifest(fields=fields, preprocessing=features)).columns
    assert [(column.role, column.encoding) for column in columns] == [
        ("number", "of at: mean 0, standard deviation 1"), ("category", "of km: 4 ids by range; first borders: 1.5, 20.25"),
        ("category", "of agent: 5,000 ids by hash")]


def test_a_recipe_without_seed_or_split_is_no_error() -> None:
    facts = data_facts(sample_manifest(recipe={}, source={"flights": "somewhere"}))
    assert (facts.seed, facts.split_column, facts.sources[0].rows) == (None, None, None)


def test_the_best_of_each_metric_is_the_lowest_or_the_highest() -> None:
    facts = quality_facts(quality())
    loss, auc, precision, _ = METRICS
    assert (facts.best(loss), facts.best(auc)) == (("network",), ("network",))
    assert facts.best(precision) == ("network", "logistic_regression", "base_rate")  # a tie


@pytest.mark.parametrize(("network_loss", "beaten"), [(0.4, True), (0.5, False), (0.55, False)])
def test_the_network_beats_the_baselines_only_if_it_beats_both(network_loss: float, beaten: bool) -> None:
    assert quality_facts(quality(network=network_loss)).beaten is beaten


@pytest.mark.parametrize(("ridge_error", "beaten"), [(3.0, True), (1.0, False)])
def test_a_regression_is_compared_by_r2_and_rmse_in_the_label_s_units(ridge_error: float, beaten: bool) -> None:
    labels = np.arange(50.0)
    models = {"network": 2.0, "ridge": ridge_error, "mean": 20.0}
    figures = {key: regression_metrics(all_sums(labels + error, labels), Standardisation(mean=0.0, std=100.0)).model_dump(mode="json")
               for key, error in models.items()}
    facts = quality_facts({"task": "regression", "split": "test", "dataset_version": 2, "weights_sha256": "w1", **figures})
    r2, rmse, _ = ERRORS
    assert [model.title for model in facts.models] == ["Network", "Ridge regression", "Mean"]
    assert (facts.rival(r2).key, facts.beaten) == ("ridge", beaten)
    assert facts.best(rmse) == (("network",) if beaten else ("ridge",))
    assert rmse.text(facts.models[0].figure(rmse)) == "200"


def test_a_metric_that_does_not_exist_is_never_the_best() -> None:
    document = quality() | {"base_rate": metrics(0.6, auc=None, roc={"fpr": [], "tpr": []})}
    assert quality_facts(document).best(METRICS[1]) == ("network",)


@pytest.mark.parametrize("document", [{}, {"split": "test"}, {key: value for key, value in quality().items() if key != "base_rate"}])
def test_a_document_that_is_no_evaluation_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        quality_facts(document)
