"""Predictions as columns of a frame: of a batch, of a stream with a restart, once for each row whatever is done with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sparkring
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.pipelines.training.job.model_files import load_card
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import score
from tests.support.etl_tables import COLUMNS, etl_config, save_untrained, trips, write_trips

pytest_plugins = ["tests.support.spark_sessions"]

SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()) + ", note string"


@pytest.fixture(scope="module")
def config(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A prepared dataset with four classes, and an untrained model."""
    made = etl_config(tmp_path_factory.mktemp("predict"), task="multiclass", label="stars", query=(
        "SELECT id * 10 AS row_id, day, CAST(id % 4 AS SMALLINT) AS stars, km, km * km AS km2, city FROM trips"))
    prepare(made, spark=spark)
    save_untrained(made)
    return made


def _features(rows: DataFrame) -> DataFrame:
    return rows.withColumn("km2", sf.col("km") * sf.col("km"))


def test_classes_have_the_label_s_type_and_the_likeliest_come_first(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    three = config.model_copy(update={"score": config.score.model_copy(update={"top_k": 3})})
    write_trips(tmp_path / "trips.csv", trips()[:50])
    frame = _features(spark.read.csv(str(tmp_path), schema=SCHEMA, header=True, nullValue="NA"))
    predicted = sparkring.predict(frame, three)
    assert predicted.dtypes == [
        *frame.dtypes, ("prediction", "smallint"), ("probability", "double"), ("probabilities", "array<double>"),
        ("top_k", "array<struct<class:smallint,probability:double>>")]
    classes = [int(name) for name in load_card(config.run_url).preprocessing.classes]
    for row in predicted.collect():
        order = sorted(range(4), key=lambda number: -row["probabilities"][number])[:3]
        assert [(one["class"], one["probability"]) for one in row["top_k"]] == [(classes[n], row["probabilities"][n]) for n in order]
        assert (row["prediction"], row["probability"]) == tuple(row["top_k"][0])


def test_a_filter_on_predictions_asks_the_network_once(spark: SparkSession, config: Config) -> None:
    frame = _features(spark.createDataFrame([(1, 2.0, "Bern")], "id int, km double, city string"))
    plan: Any = sparkring.predict(frame, config).where("probability > 0.1 AND prediction >= 0")
    executed = plan._jdf.queryExecution().executedPlan().toString()
    assert executed.count("ArrowEvalPython") == 1
    assert "Join" not in executed


def test_a_stream_is_scored_with_its_checkpoint_across_a_restart(
        spark: SparkSession, config: Config, tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    write_trips(incoming / "a.csv", trips()[:300])

    def run() -> int:
        rows = spark.readStream.csv(str(incoming), schema=SCHEMA, header=True, nullValue="NA").withWatermark("day", "1 day")
        scored = sparkring.predict(_features(rows), config)
        query = (scored.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
                 .trigger(availableNow=True).start(str(tmp_path / "scored")))
        assert query.awaitTermination(240)
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    assert run() == 300
    write_trips(incoming / "b.csv", trips()[300:420])
    assert run() == 120  # the restart goes on where the checkpoint says
    assert run() == 0
    streamed = spark.read.parquet(str(tmp_path / "scored"))
    batch = sparkring.predict(_features(spark.read.csv(str(incoming), schema=SCHEMA, header=True, nullValue="NA")), config)
    expected = {row["id"]: (row["prediction"], row["probability"]) for row in batch.collect()}
    found = {row["id"]: (row["prediction"], row["probability"]) for row in streamed.collect()}
    assert len(found) == 420
    assert {number: one for number, (one, _) in found.items()} == {number: one for number, (one, _) in expected.items()}
    assert [found[number][1] for number in sorted(found)] == pytest.approx([expected[number][1] for number in sorted(found)], rel=1e-6)
    rows = spark.readStream.csv(str(incoming), schema=SCHEMA, header=True).withWatermark("day", "1 day")
    watermarked = sparkring.predict(_features(rows), config)
    assert "spark.watermarkDelayMs" in watermarked.schema["day"].metadata  # windows over predictions work, too
    with pytest.raises(ConfigError, match=r"the frame to score is a stream, which has no end; use sparkring\.predict"):
        score(config, spark=spark, frame=watermarked)
