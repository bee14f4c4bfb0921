"""The Spark ML estimator in Spark ML's own hands, on every kind of column, and over Spark Connect: the widths of test_estimator.py."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import StringIndexerModel
from pyspark.ml.linalg import Vectors
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit
from pyspark.sql import DataFrame, SparkSession

import sparkring
from sparkring.errors import ConfigError, NotEnoughSlots, SourceError
from sparkring.estimator.slots import _RUNNING
from tests.support.cell import needs_connect
from tests.support.images import encoded
from tests.support.ring_driver import wait_until

pytest_plugins = ["tests.support.spark_sessions"]
pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def points(spark: SparkSession) -> DataFrame:
    """400 points, of which those in one half are 1 and the others 0, nearly."""
    draw = random.Random(5)
    rows = [(x := draw.uniform(-1, 1), draw.uniform(-1, 1), int(x > 0) if draw.random() < 0.95 else int(x <= 0)) for _ in range(400)]
    return spark.createDataFrame(rows, "x double, y double, label int").cache()


def _classifier(**params: Any) -> sparkring.TorchClassifier:
    defaults: dict[str, Any] = {"numRanks": 2, "epochs": 3, "hiddenSizes": [8], "learningRate": 0.03}
    return sparkring.TorchClassifier(**defaults | params)


def test_a_cross_validation_trains_two_rings_at_once_and_leaves_rows_and_views_as_they_were(points: DataFrame, tmp_path: Path) -> None:
    points.sparkSession.range(3).createOrReplaceTempView("rows")
    classifier = _classifier()
    grid = ParamGridBuilder().addGrid(classifier.learningRate, [1e-7, 0.03]).build()
    search = CrossValidator(estimator=classifier, estimatorParamMaps=grid, evaluator=BinaryClassificationEvaluator(), numFolds=2,
                            parallelism=2, seed=1)
    found = search.fit(points)
    assert found.avgMetrics[1] > max(0.85, found.avgMetrics[0])
    assert isinstance(found.bestModel, sparkring.TorchModel)
    assert found.transform(points).count() == 400
    assert points.storageLevel.useMemory
    assert [table.name for table in points.sparkSession.catalog.listTables()] == ["rows"]
    assert points.sparkSession.table("rows").columns == ["id"]
    points.sparkSession.catalog.dropTempView("rows")


def test_rings_that_do_not_fit_the_slots_together_are_refused(points: DataFrame) -> None:
    classifier = _classifier(numRanks=3)
    grid = ParamGridBuilder().addGrid(classifier.learningRate, [0.01, 0.03]).build()
    search = CrossValidator(estimator=classifier, estimatorParamMaps=grid, evaluator=BinaryClassificationEvaluator(), numFolds=2,
                            parallelism=2)
    with pytest.raises(NotEnoughSlots, match=r"2 fits run at once.*lower the parallelism .* or set numRanks to at most 2"):
        search.fit(points)
    wait_until(lambda: not any(_RUNNING.ranks.values()), "the end of the fit that was let in, which Spark ML does not stop")


def test_a_train_validation_split_takes_the_better_rate_by_extra_params(points: DataFrame) -> None:
    classifier = _classifier()
    grid = ParamGridBuilder().addGrid(classifier.learningRate, [1e-7, 0.03]).build()
    search = TrainValidationSplit(estimator=classifier, estimatorParamMaps=grid, evaluator=BinaryClassificationEvaluator(), seed=1)
    found = search.fit(points)
    assert found.validationMetrics[1] > found.validationMetrics[0]
    other = classifier.fit(points, {classifier.predictionCol: "answer"})
    assert "answer" in other.transform(points).columns
    assert classifier.getPredictionCol() == "prediction"


def test_every_kind_of_column_is_a_feature_and_texts_are_classes(spark: SparkSession, tmp_path: Path) -> None:
    draw = random.Random(3)
    rows = []
    for number in range(600):
        size = draw.choice(["small", "medium", "large"])
        place = ["small", "medium", "large"].index(size)
        noisy = place + draw.gauss(0, 0.3)
        rows.append((noisy > 1, Decimal(round(noisy * 100)) / 100, date(2026, 1, 1) + timedelta(days=number % 300),
                     datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=97 * number), [noisy, draw.random()],
                     Vectors.dense(draw.random(), -noisy) if number % 2 else Vectors.sparse(2, {1: -noisy}),
                     draw.choice("ABC"), f"c{draw.randint(0, 150)}", draw.randint(0, 5), float(draw.randint(1, 3)), size))
    frame = spark.createDataFrame(spark.createDataFrame(rows).rdd, [
        "flag", "price", "day", "at", "pair", "vector", "letter", "customer", "count", "importance", "size"])
    classifier = _classifier(labelCol="size", weightCol="importance", epochs=6, workspace=str(tmp_path / "kept"))
    model = classifier.fit(frame)
    assert {choice.column: choice.use for choice in model.choices.columns} == {
        "flag": "numeric", "price": "numeric", "day": "moments", "at": "moments", "pair": "elements", "vector": "elements",
        "letter": "categorical", "customer": "hashed", "count": "numeric"}
    assert sorted(model.labels) == ["large", "medium", "small"]
    model.save(str(tmp_path / "model"))
    scored = sparkring.TorchModel.load(str(tmp_path / "model")).transform(frame)
    assert scored.exceptAll(model.transform(frame)).isEmpty()
    indexed = StringIndexerModel.from_labels(model.labels, inputCol="size", outputCol="label").transform(scored)
    assert MulticlassClassificationEvaluator(metricName="accuracy").evaluate(indexed) > 0.7
    loss: Any = "logLoss"  # its stubs lack it
    assert MulticlassClassificationEvaluator(metricName=loss).evaluate(indexed) < 0.9
    assert model.run_url is not None
    assert (tmp_path / "kept").is_dir()
    with pytest.raises(SourceError, match="column pair is double now, and it was an array of numbers"):
        model.transform(frame.withColumn("pair", frame.pair[0]))


def test_a_regressor_predicts_numbers(points: DataFrame) -> None:
    frame = points.selectExpr("x", "y", "10 * x - y AS target")
    model = sparkring.TorchRegressor(labelCol="target", numRanks=2, epochs=15, hiddenSizes=[16], learningRate=0.03).fit(frame)
    scored = model.transform(frame)
    assert scored.columns == ["x", "y", "target", "prediction"]
    assert RegressionEvaluator(labelCol="target", metricName="r2").evaluate(scored) > 0.9
    assert model.labels == []
    stacked = sparkring.TorchRegressor(labelCol="target", predictionCol="better", numRanks=2, epochs=1, hiddenSizes=[8]).fit(scored)
    assert stacked.transform(scored).count() == 400
    with pytest.raises(SourceError, match="predicts numbers; cast it to double, or use TorchClassifier"):
        sparkring.TorchRegressor(labelCol="t", numRanks=2).fit(frame.selectExpr("x", "IF(y > 0, 'a', 'b') AS t"))


def test_a_vector_column_alone_is_enough(spark: SparkSession, points: DataFrame) -> None:
    frame = spark.createDataFrame([(Vectors.dense(row.x, row.y), float(row.label)) for row in points.collect()], ["features", "label"])
    model = _classifier(featuresCol="features").fit(frame)
    assert BinaryClassificationEvaluator().evaluate(model.transform(frame)) > 0.85
    with pytest.raises(ConfigError, match="are both set; clear one of them"):
        _classifier(featuresCol="features", featuresCols=["features"]).fit(frame)


def test_a_binary_column_is_read_as_images(spark: SparkSession) -> None:
    draw = np.random.default_rng(3)
    pictures = [(draw.integers(0, 100, (8, 8)) + 150 * (number % 2)).astype(np.uint8) for number in range(200)]
    rows = [(bytearray(encoded(pixels)), number % 2) for number, pixels in enumerate(pictures)]
    frame = spark.createDataFrame(rows, "picture binary, label int")
    model = _classifier(hiddenSizes=[4], epochs=4).fit(frame)
    assert [choice.use for choice in model.choices.columns] == ["image"]
    assert BinaryClassificationEvaluator().evaluate(model.transform(frame)) > 0.9


def test_more_ranks_than_slots_are_refused_before_anything_is_read(points: DataFrame, tmp_path: Path) -> None:
    with pytest.raises(NotEnoughSlots, match=r"has 4 of the 5 free slots .*set numRanks to at most 4"):
        _classifier(numRanks=5, workspace=str(tmp_path / "never")).fit(points)
    assert not (tmp_path / "never").exists()


@needs_connect
def test_over_spark_connect_a_model_is_fitted_saved_and_loaded(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.support.estimator_connect", str(tmp_path)], cwd=ROOT, capture_output=True,
                          text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "connect" in found["session"]
    assert found["columns"] == ["x", "v", "label", "rawPrediction", "probability", "prediction"]
    assert found["right"] > 0.8
    assert found["loaded"] == found["fitted"]
    assert found["twice"] == [1, 2]
