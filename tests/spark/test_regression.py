"""Regression the whole way: prepared, trained on two ranks, evaluated, scored and reported; figures against scikit-learn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from sparkring.cli.jobs import quality_text
from sparkring.conf.loading import load_config
from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.report import report
from sparkring.spark_jobs.score import score
from sparkring.spark_jobs.scoring.baselines import REGULARISATION
from sparkring.spark_jobs.train import train
from tests.support.etl_tables import etl_config, examples, trips, write_trips

pytest_plugins = ["tests.support.spark_sessions"]

FAR = 1e9
"""The labels differ by tens around it: a float32 could not tell them apart."""
QUERY = (f"SELECT id * 10 AS row_id, day, CAST({FAR:.0f} + coalesce(km, 47) * 3 + 20 * late AS DECIMAL(20, 3)) AS minutes, km, city "
         "FROM trips")
TRAIN = {"num_ranks": 2, "epochs": 8, "batch_rows": 32, "loss": "huber", "optimizer": {"lr": 0.02}}


def _config(folder: Path, rows: Any = None) -> Config:
    features = {"numeric": ["km"], "categorical": ["city"]}
    config = etl_config(folder, rows, query=QUERY, task="regression", label="minutes", features=features)
    return config.changed(train=config.train.changed(**TRAIN))


@pytest.fixture(scope="module")
def config(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Prepared and trained."""
    made = _config(tmp_path_factory.mktemp("regression"))
    prepare(made, spark=spark)
    train(made, spark=spark)
    return made


@pytest.fixture(scope="module")
def evaluation(spark: SparkSession, config: Config) -> dict[str, Any]:
    """What evaluating it gives."""
    return evaluate(config, spark=spark)


def _split(config: Config, name: str, version: int = 1) -> pa.Table:
    dataset = Dataset(config.dataset)
    return pa.concat_tables(pq.read_table(dataset.store.path(file.path)) for file in dataset.manifest(version).splits[name].files)


def _minutes(name: str) -> NDArray[np.float64]:
    """The labels of a split, by row id, without Spark."""
    return np.array([FAR + round((47 if trip.km is None else trip.km) * 3 + 20 * (trip.late or 0), 3) for trip in examples(name)])


def _figures(labels: NDArray[np.float64], predicted: NDArray[np.float64]) -> dict[str, float]:
    return {"mse": mean_squared_error(labels, predicted), "rmse": mean_squared_error(labels, predicted) ** 0.5,
            "mae": mean_absolute_error(labels, predicted), "r2": r2_score(labels, predicted)}


def _shown(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: metrics[name] for name in ("mse", "rmse", "mae", "r2")}


def test_labels_are_stored_as_they_are_and_standardised_by_train_rows(config: Config) -> None:
    manifest = Dataset(config.dataset).manifest()
    for name in ("train", "validation", "test"):  # rows without a label are not among them
        table = _split(config, name).sort_by("row_id")
        assert table.schema.field("minutes").type == pa.float64()
        assert table["minutes"].to_pylist() == _minutes(name).tolist()
    fitted = manifest.preprocessing.label
    assert fitted is not None
    assert fitted.mean - FAR == pytest.approx((_minutes("train") - FAR).mean(), rel=1e-6)
    assert fitted.std == pytest.approx(_minutes("train").std(), rel=1e-6)


def test_the_network_is_evaluated_by_the_predictions_that_scoring_writes(
        spark: SparkSession, config: Config, evaluation: dict[str, Any]) -> None:
    scored = pq.read_table(Path(score(config, spark=spark).url.removeprefix("file://")))
    assert scored.column_names == ["row_id", "minutes", "prediction", "model", "dataset_version", "split"]
    labels, predicted = scored["minutes"].to_numpy(), scored["prediction"].to_numpy()
    assert _shown(evaluation["network"]) == pytest.approx(_figures(labels, predicted), rel=1e-5)
    assert evaluation["network"]["rows"] == len(labels) == sum(part["rows"] for part in evaluation["network"]["bins"])
    assert evaluation["network"]["r2"] > 0.9
    assert abs(evaluation["mean"]["r2"]) < 0.1


def test_the_baselines_are_the_train_mean_and_scikit_learn_s_ridge_on_the_same_features(config: Config, evaluation: dict[str, Any]) -> None:
    train_rows, test_rows = _split(config, "train"), _split(config, "test")
    labels = test_rows["minutes"].to_numpy()
    centre = float(train_rows["minutes"].to_numpy().mean())
    assert _shown(evaluation["mean"]) == pytest.approx(_figures(labels, np.full(len(labels), centre)), rel=1e-5, abs=1e-5)

    def design(table: pa.Table) -> NDArray[np.float64]:
        return np.stack([table["km"].to_numpy().astype(np.float64), *((table["city"].to_numpy() == place) for place in range(3))], axis=1)

    spread = design(train_rows).std(axis=0)  # pyspark.ml penalises the coefficients of columns of deviation 1
    reference = Ridge(alpha=REGULARISATION * train_rows.num_rows)
    reference.fit(design(train_rows) / spread, train_rows["minutes"].to_numpy() - centre)
    predicted = reference.predict(design(test_rows) / spread) + centre
    assert _shown(evaluation["ridge"]) == pytest.approx(_figures(labels, predicted), rel=1e-4)


def test_the_report_and_the_command_line_say_how_good_it_is(config: Config, evaluation: dict[str, Any]) -> None:
    network = evaluation["network"]
    line = f"network              R2 {network['r2']:.4f}   RMSE {network['rmse']:.4g}   MAE {network['mae']:.4g}"
    assert line in quality_text(evaluation)
    page = Path(report(config).path).read_text(encoding="utf-8")
    assert re.search(rf'<th scope="row">Network</th>\s*<td class="number[^"]*">{network["r2"]:.4f}</td>', page)
    assert {"by-prediction-title", "residuals-title"} <= set(re.findall(r'h3 id="([^"]+)"', page))
    assert "cannot be read" not in page


@pytest.mark.nightly
def test_appended_labels_are_standardised_by_the_parent_s_figures(spark: SparkSession, tmp_path: Path) -> None:
    first = _config(tmp_path, trips()[:800])
    prepare(first, spark=spark)
    write_trips(tmp_path / "trips.csv", trips())
    assert prepare(_config(tmp_path), append=True, spark=spark).version == 2
    before, after = (Dataset(first.dataset).manifest(version) for version in (1, 2))
    assert after.preprocessing.label == before.preprocessing.label
    assert len(_split(first, "test", 2)) > len(_split(first, "test", 1))


@pytest.mark.nightly
def test_the_shipped_regression_of_flights_is_better_than_ridge(spark: SparkSession, tmp_path: Path) -> None:
    config = load_config("local/flights-delay", [f"workspace={tmp_path}"])
    prepare(config, spark=spark)
    train(config, spark=spark)
    found = evaluate(config, spark=spark)
    assert found["network"]["r2"] > found["ridge"]["r2"] > 0.04
    assert abs(found["mean"]["r2"]) < 0.01
