"""Numbers as declared: filled and scaled by figures of the train rows, stored once, and the same in files, training and scoring."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkring.conf.schema import Config
from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.spark_jobs.etl.columns.quantiles import quantiles
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import score
from tests.support import seams
from tests.support.command_line import exit_code
from tests.support.etl_tables import TEST_FROM, Trip, etl_config, examples, save_untrained, trips
from tests.support.scoring_inputs import inputs_of

pytest_plugins = ["tests.support.spark_sessions"]

COLUMNS = [f"km_{letter}" for letter in "abcdefgh"]
QUERY = f"SELECT id * 10 AS row_id, day, late, city, {', '.join(f'km AS {name}' for name in COLUMNS)} FROM trips"
"""One number under eight names, each of which is filled and scaled in another way."""
NUMERIC: list[Any] = [
    "km_a", {"column": "km_b", "fill": "median"}, {"column": "km_c", "fill": -5, "indicator": True},
    {"column": "km_d", "scale": "min_max"}, {"column": "km_e", "fill": "median", "scale": "robust", "indicator": True},
    {"column": "km_f", "fill": 0, "scale": "log1p"}, {"column": "km_g", "scale": "none"}, {"column": "km_h", "scale": "robust"}]


@dataclass(frozen=True)
class Figures:
    """Of the train rows, by NumPy."""

    mean: float
    std: float
    low: float
    median: float
    high: float
    least: float
    most: float


def _config(folder: Path, rows: list[Trip] | None = None, numeric: list[Any] | None = None) -> Config:
    return etl_config(folder, rows, query=QUERY, features={"numeric": NUMERIC if numeric is None else numeric, "categorical": ["city"]})


def _figures() -> Figures:
    known = [trip.km for trip in examples("train") if trip.km is not None]
    low, median, high = np.quantile(known, [0.25, 0.5, 0.75])
    return Figures(float(np.mean(known)), float(np.std(known)), float(low), float(median), float(high), min(known), max(known))


def _expected(km: float | None) -> dict[str, float]:
    """What the network sees of a trip."""
    figures = _figures()
    mean, std, median, spread = figures.mean, figures.std, figures.median, figures.high - figures.low

    def filled(value: float) -> float:
        return value if km is None else km

    return {"km_a": (filled(mean) - mean) / std, "km_b": (filled(median) - mean) / std, "km_c": (filled(-5) - mean) / std,
            "km_d": (filled(mean) - figures.least) / (figures.most - figures.least), "km_e": (filled(median) - median) / spread,
            "km_f": math.log1p(filled(0)), "km_g": filled(mean), "km_h": (filled(mean) - median) / spread,
            "km_c_is_null": float(km is None), "km_e_is_null": float(km is None)}


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """One prepared version, which tests only read."""
    config = _config(tmp_path_factory.mktemp("numbers"))
    prepare(config, spark=spark)
    return config


def _manifest(config: Config) -> Manifest:
    return Dataset(config.dataset).manifest()


def _rows(config: Config, split: str) -> list[dict[str, Any]]:
    store = Dataset(config.dataset).store
    tables = [pq.read_table(store.path(file.path)) for file in _manifest(config).splits[split].files]
    return pa.concat_tables(tables).to_pylist()


def _raw(spark: SparkSession, rows: list[Trip]) -> DataFrame:
    """The query's result, as a user would bring it for scoring."""
    return spark.createDataFrame([(trip.id * 10, trip.city, *[trip.km] * len(COLUMNS)) for trip in rows],
                                 f"row_id bigint, city string, {', '.join(f'{name} double' for name in COLUMNS)}")


def test_numbers_are_filled_and_scaled_by_figures_of_the_train_rows(made: Config) -> None:
    for split in ("train", "validation", "test"):
        by_id = {trip.id * 10: trip for trip in examples(split)}
        rows = _rows(made, split)
        assert len(rows) == len(by_id)
        assert any(by_id[row["row_id"]].km is None for row in rows)
        for row in rows:
            for name, value in _expected(by_id[row["row_id"]].km).items():
                assert row[name] == pytest.approx(value, rel=1e-5, abs=2e-6), (row["row_id"], name)


def test_the_manifest_holds_the_figures_and_datasets_show_prints_them(
        made: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    figures, fitted = _figures(), {feature.column: feature for feature in _manifest(made).preprocessing.numeric}
    assert fitted["km_e"].filled_with == fitted["km_e"].centre == pytest.approx(figures.median, rel=1e-12)  # exact, no sketch
    assert fitted["km_e"].spread == pytest.approx(figures.high - figures.low, rel=1e-12)
    assert (fitted["km_d"].centre, fitted["km_d"].spread) == (figures.least, figures.most - figures.least)
    assert [feature.filled_with for feature in fitted.values()] == pytest.approx([
        figures.mean, figures.median, -5, figures.mean, figures.median, 0, figures.mean, figures.mean])
    assert all(feature.nulls == fitted["km_a"].nulls > 0 for feature in fitted.values())
    monkeypatch.setattr(sys, "argv", ["sparkring", "datasets", "show", made.dataset])
    assert exit_code() == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"km_e km_e median {figures.median:.4g}, quartiles {figures.high - figures.low:.4g} apart" in said
    assert f"filled with the median {figures.median:.4g}; km_e_is_null marks nulls" in said
    assert f"{figures.least:.4g} becomes 0 and {figures.most:.4g} becomes 1" in said
    assert "filled with -5" in said


def test_held_out_rows_change_nothing_that_was_fitted(made: Config, spark: SparkSession, tmp_path: Path) -> None:
    other = _config(tmp_path, [trip if trip.day < TEST_FROM else replace(trip, km=1e6) for trip in trips()])
    prepare(other, spark=spark)
    assert _manifest(other).preprocessing == _manifest(made).preprocessing
    assert _manifest(other).content_id != _manifest(made).content_id


def test_training_scoring_and_evaluation_take_the_stored_definition(made: Config, spark: SparkSession) -> None:
    manifest = _manifest(made)
    assert shapes_of(manifest.task, manifest.preprocessing).num_numeric == 10
    card = save_untrained(made)
    assert Preprocessing.model_validate_json(card.preprocessing.model_dump_json()) == manifest.preprocessing
    test = {row["row_id"]: row for row in _rows(made, "test")}
    reader = SplitReader(Dataset(made.dataset).store, manifest, "test")
    loader = Loader(reader, LoaderConfig(batch_rows=64, seed=1, lanes=4), rank=0, num_ranks=1)
    for batch in loader.epoch(0):
        for number, values in zip(batch.tensors["row_id"].tolist(), batch.tensors["numeric"].tolist(), strict=True):
            assert values == [test[number][name] for name in (*COLUMNS, "km_c_is_null", "km_e_is_null")]
    raw = _raw(spark, examples("test"))
    encoded = inputs_of(raw, made.run_url)
    assert encoded == {number: {name: row[name] for name in encoded[number]} for number, row in test.items()}
    split, brought = ({row["row_id"]: row["probability"] for row in pq.read_table(Path(result.url.removeprefix("file://"))).to_pylist()}
                      for result in (score(made, spark=spark), score(made, spark=spark, frame=raw)))
    assert brought == pytest.approx(split, rel=1e-6)
    assert 0 < evaluate(made, spark=spark)["logistic_regression"]["auc"] < 1


def test_a_later_number_without_a_logarithm_counts_as_a_null(made: Config, spark: SparkSession) -> None:
    strange = [replace(trip, km=km) for trip, km in zip(trips(), (-1.0, -7.0, math.inf, math.nan, -0.5), strict=False)]
    save_untrained(made)
    encoded = inputs_of(_raw(spark, strange), made.run_url)
    assert [encoded[trip.id * 10]["km_f"] for trip in strange] == pytest.approx([0, 0, 0, 0, math.log1p(-0.5)])
    assert [encoded[trip.id * 10]["km_c_is_null"] for trip in strange] == [0, 0, 1, 1, 0]  # -7 is a number where no logarithm is taken


def test_a_number_that_has_no_logarithm_in_train_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"feature km_a is scaled by ln\(1 \+ x\), .* its smallest train row is -3; choose another scale"):
        prepare(_config(tmp_path, [replace(trip, km=-3.0) if trip.id == 1 else trip for trip in trips()],
                        [{"column": "km_a", "scale": "log1p"}]), spark=spark)
    assert Dataset(str(tmp_path / "workspace/dataset")).versions() == []


@pytest.mark.parametrize("scale", ["standard", "min_max", "robust"])
def test_a_number_that_is_always_the_same_becomes_0(spark: SparkSession, tmp_path: Path, scale: str) -> None:
    config = _config(tmp_path, [replace(trip, km=None if trip.km is None else 7.5) for trip in trips()],
                     [{"column": "km_a", "scale": scale}])
    prepare(config, spark=spark)
    assert {row["km_a"] for row in _rows(config, "train")} == {0.0}


def test_quantiles_of_many_rows_come_from_a_sample_that_only_their_ids_decide(
        spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = spark.range(40_000).selectExpr("id AS row_id", "sin(id) AS x")

    def median(rows: DataFrame) -> float:
        return quantiles(rows, [("x", [0.5])], rows=40_000, row_id="row_id")[0][0]

    exact = median(frame)
    assert exact == pytest.approx(np.median(np.sin(np.arange(40_000))), abs=1e-12)
    monkeypatch.setattr(seams.QUANTILES_SAMPLE_ROWS, 4_000)
    sampled = [median(rows) for rows in (frame, frame.repartition(7), frame.orderBy("x"))]
    assert sampled[0] == sampled[1] == sampled[2] != exact
    share = float((np.sin(np.arange(40_000)) < sampled[0]).mean())
    assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(4_000)  # five deviations of a share in a sample
