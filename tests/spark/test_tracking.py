"""Tracking of real runs: training does not mind that MLflow is away, and a tracked model predicts as `sparkring score` does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, DateType, DecimalType, DoubleType, LongType, StringType, StructField, StructType, TimestampType

from sparkring.conf.schema import Config, SourceConfig
from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.pandas_rows import encode_rows
from sparkring.pipelines.data.dataset.preprocessing import (
    BucketFeature,
    CategoricalFeature,
    HashFeature,
    MomentPart,
    NumericFeature,
    Preprocessing,
)
from sparkring.spark_jobs.etl.encoding.table_features import encode
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import score
from sparkring.spark_jobs.spark.session import result_settings
from sparkring.spark_jobs.tracking.track import track
from sparkring.spark_jobs.train import train
from tests.support.etl_tables import COLUMNS, QUERY, etl_config
from tests.support.mlflow_server import Notes, client_of, history, mlflow_server
from tests.support.tcp import held_ports
from tests.support.training import await_condition, events_of

pytest_plugins = ["tests.support.spark_sessions"]

STEPS, EPOCHS = 19, 2
"""Steps of an epoch: about 590 rows, 32 each."""


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    prepare(etl_config(folder), spark=spark)
    return folder


def _config(prepared: Path, workspace: Path, uri: str, **train_section: Any) -> Config:
    return etl_config(prepared).changed(
        workspace=str(workspace), dataset_url=str(prepared / "workspace/dataset"),
        train={"epochs": EPOCHS, "batch_rows": 32, "optimizer": {"schedule": "constant"}, **train_section},
        tracking={"mlflow_uri": uri, "experiment": workspace.name, "finish_s": 120})


def _require_all_sent(config: Config, uri: str, run_id: str) -> None:
    """MLflow's losses are those of the run's events, each once."""
    last = {(record["epoch"], record["step"]): record["loss"] for record in events_of(config, "step") if record["rank"] == 0}
    sent = history(uri, run_id, "train/loss")
    assert [step for step, _ in sent] == list(range(1, len(last) + 1))
    np.testing.assert_allclose([loss for _, loss in sent], [last[place] for place in sorted(last)], rtol=1e-6)
    epochs = {record["epoch"]: record["validation"]["auc"] for record in events_of(config, "epoch")}
    assert [value for _, value in history(uri, run_id, "validation/auc")] == [epochs[number] for number in sorted(epochs)]


@pytest.mark.timeout(600)
def test_training_is_whole_while_mlflow_is_away_and_all_of_it_is_sent_later(spark: SparkSession, prepared: Path, tmp_path: Path) -> None:
    notes = Notes()
    with held_ports(1) as [port]:
        uri = f"http://127.0.0.1:{port}"
        away = _config(prepared, tmp_path / "away", uri)
        result = train(away, spark=spark, progress=notes)
        assert result.steps == STEPS * EPOCHS
        assert notes.of_tracking == [f"tracking: MLflow at {uri} does not answer; what is not sent now is sent later",
                                     "tracking: not everything is in MLflow yet; `sparkring track` with this config sends the rest"]
        with mlflow_server(tmp_path, port=port):
            later = track(away)  # as `sparkring track` does
            _require_all_sent(away, uri, later.mlflow_run_id)
            assert client_of(uri).get_run(later.mlflow_run_id).info.status == "FINISHED"
            sent = json.loads((tmp_path / "away/runs/first/tracking.json").read_text())
            assert (sent["steps"], sent["epochs"], sent["status"], list(sent["files"])) == (STEPS * EPOCHS, EPOCHS, "FINISHED", ["model"])
            _require_the_scores_of_spark(spark, away, uri, later.mlflow_run_id, tmp_path)


def _require_the_scores_of_spark(spark: SparkSession, config: Config, uri: str, run_id: str, folder: Path) -> None:
    import mlflow.pyfunc

    trips = config.prepare.sources["trips"]
    assert isinstance(trips, SourceConfig)
    source = spark.read.csv(trips.path, header=True, nullValue="NA")
    source.select([sf.col(name).cast(kind) for name, kind in COLUMNS.items()]).createOrReplaceTempView("trips")
    frame = spark.sql(QUERY)
    scored = pq.read_table(Path(score(config, spark=spark, frame=frame).url.removeprefix("file://"))).sort_by("row_id")
    rows = frame.toPandas().sort_values("row_id")
    loaded = mlflow.pyfunc.load_model(client_of(uri).download_artifacts(run_id, "model", str(folder)))
    found = loaded.predict(rows[["city", "km", "km2"]])  # any order of columns
    assert len(rows) == 900
    np.testing.assert_allclose(found["probability"], scored["probability"].to_numpy(), rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_killed_driver_s_run_goes_on_as_the_same_run_of_mlflow(spark: SparkSession, prepared: Path, tmp_path: Path) -> None:
    with mlflow_server(tmp_path) as uri:
        config = _config(prepared, tmp_path / "killed", uri, epochs=60, checkpoint_steps=50)
        (tmp_path / "killed.yaml").write_text(yaml.safe_dump(
            json.loads(config.changed(spark={"master": "local[2]"}).model_dump_json(exclude_unset=True))))
        driver = subprocess.Popen([sys.executable, "-m", "sparkring", "train", str(tmp_path / "killed.yaml")], start_new_session=True)
        document = Path(config.run_url) / "tracking.json"
        await_condition(lambda: document.exists() and json.loads(document.read_text())["steps"] > 100, "metrics in MLflow", within_s=300)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        killed = json.loads(document.read_text())
        assert killed["steps"] < STEPS * 60
        result = train(config, spark=spark)
        assert result.resumed_at > 0
        sent = json.loads(document.read_text())
        assert (sent["mlflow_run_id"], sent["steps"], sent["status"]) == (killed["mlflow_run_id"], STEPS * 60, "FINISHED")
        _require_all_sent(config, uri, sent["mlflow_run_id"])


_at = datetime.fromisoformat

ODD: list[dict[str, Any]] = [
    {"x": 1.5, "n": 7, "b": True, "city": "Bern", "code": 3, "at": _at("2024-02-29T23:59:59.999999Z"), "day": date(2024, 12, 30),
     "price": Decimal("12.50")},
    {"x": -0.0, "n": 0, "b": False, "city": "", "code": -3, "at": _at("1969-12-31T23:59:59.000001Z"), "day": date(1970, 1, 1),
     "price": Decimal("-0.01")},
    {"x": float("nan"), "n": 2**53 + 1, "b": None, "city": "Z\u00fcrich \U0001f600", "code": 2**62, "at": _at("2024-03-31T01:00:00Z"),
     "day": date(1900, 3, 1), "price": None},
    {"x": float("inf"), "n": -2**63, "b": True, "city": " Bern", "code": 0, "at": _at("2024-10-27T00:30:00Z"), "day": date(2021, 1, 3),
     "price": Decimal("99999999.99")},
    {"x": float("-inf"), "n": None, "b": None, "city": None, "code": None, "at": None, "day": None, "price": Decimal(0)},
    {"x": 1e308, "n": 2**63 - 1, "b": False, "city": "NaN", "code": 3, "at": _at("2200-06-15T12:00:00Z"), "day": date(2000, 2, 29),
     "price": Decimal("18.00")},
    {"x": -1.0, "n": -1, "b": True, "city": "null", "code": 10, "at": _at("1850-01-01T06:00:00Z"), "day": date(1999, 12, 31),
     "price": Decimal("65.00")},
    {"x": 5e-324, "n": 1, "b": True, "city": "a\x00b", "code": 1, "at": _at("2024-07-04T04:05:06Z"), "day": date(2024, 7, 4),
     "price": Decimal("17.99")}]
SCHEMA = StructType([
    StructField("x", DoubleType()), StructField("n", LongType()), StructField("b", BooleanType()), StructField("city", StringType()),
    StructField("code", LongType()), StructField("at", TimestampType()), StructField("day", DateType()),
    StructField("price", DecimalType(10, 2))])


def _number(column: str, **figures: Any) -> NumericFeature:
    return NumericFeature(**{"column": column, "mean": 0.25, "std": 3.0, "nulls": 1, **figures})


def _moment(of: str, part: Any, wave: Any = None, zone: str = "UTC") -> dict[str, Any]:
    return {"column": f"{of}_{part}_{wave}_{zone}", "moment": MomentPart(of=of, part=part, wave=wave, time_zone=zone)}


PREPROCESSING = Preprocessing(
    train_rows=9,
    numeric=(
        _number("x", indicator="x_missing"), _number("n", scale="log1p", centre=1.0, spread=0.5, indicator="n_missing"),
        _number("b", scale="min_max", centre=0.0, spread=1.0, filled_with=-1.0), _number("price", spread=1e-300),
        *(_number(**_moment("at", part, zone="America/New_York"))
          for part in ("year", "quarter", "month", "week", "day", "day_of_week", "day_of_year", "hour", "minute", "second", "days")),
        *(_number(**_moment("at", part, wave)) for part in ("month", "day_of_year", "hour") for wave in ("sin", "cos")),
        *(_number(**_moment("day", part)) for part in ("year", "week", "day_of_week", "days"))),
    categorical=(
        CategoricalFeature(column="city", vocabulary=("Bern", "", "Z\u00fcrich \U0001f600", "null", "a\x00b")),
        CategoricalFeature(column="code", vocabulary=("3", "-3", "4611686018427387904")),
        CategoricalFeature(vocabulary=("2", "10", "-1", "12"), **_moment("at", "month", zone="Europe/Zurich"))),
    buckets=(BucketFeature(column="x_bucket", of="x", edges=(-1.0, 0.0, 5e-324, 1.5)),
             BucketFeature(column="price_bucket", of="price", edges=(18.0, 65.0))),
    hashed=(HashFeature(column="city_hash", of="city", ids=1000, seed=0),
            HashFeature(column="code_hash", of="code", ids=2**31 - 1, seed=-7)))


def test_rows_are_encoded_without_spark_as_with_it(spark: SparkSession) -> None:
    with result_settings(spark):
        frame = spark.createDataFrame([{"place": place, **row} for place, row in enumerate(ODD)],
                                      StructType([StructField("place", LongType()), *SCHEMA]))
        expected = encode(frame, PREPROCESSING).toPandas().sort_values("place")
    rows = pd.DataFrame({name: pd.Series([row[name] for row in ODD], dtype=object) for name in SCHEMA.names})  # whole numbers stay such
    numeric, ids = encode_rows(rows, PREPROCESSING)
    assert numeric.dtype == np.float32
    for place, column in enumerate(PREPROCESSING.numeric_columns):
        found = expected[column].to_numpy(np.float32)
        np.testing.assert_allclose(numeric[:, place], found, rtol=2e-7, err_msg=column)  # Java's sine may differ in the last digit
    for place, feature in enumerate(PREPROCESSING.with_ids):
        assert ids[:, place].tolist() == expected[feature.column].tolist(), feature.column
    assert len({tuple(row) for row in ids.tolist()}) == len(ODD)  # the rows differ, so an encoder that mixes them up is noticed


def test_a_column_that_is_missing_or_of_another_type_is_named() -> None:
    rows = pd.DataFrame({"city": ["Bern"], "km": ["far"], "x": [1.5]})
    with pytest.raises(SourceError, match=r"no column citys; did you mean 'city'\?"):
        encode_rows(rows, Preprocessing(numeric=(), categorical=(CategoricalFeature(column="citys", vocabulary=()),), train_rows=1))
    with pytest.raises(SourceError, match="column km holds something else than numbers"):
        encode_rows(rows, Preprocessing(numeric=(_number("km"),), categorical=(), train_rows=1))
    with pytest.raises(SourceError, match="column x holds a float where the model takes text"):
        encode_rows(rows, Preprocessing(numeric=(), categorical=(CategoricalFeature(column="x", vocabulary=()),), train_rows=1))
