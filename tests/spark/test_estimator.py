"""The Spark ML estimator on a real session with real ranks: a frame in, a model out, in a Pipeline, on disk and back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, StructField, StructType

import sparkring
from sparkring.errors import CheckpointDamaged, ConfigError, DocumentDamaged, SourceError, SparkringError
from sparkring.estimator.look import Asked, look

pytest_plugins = ["tests.support.spark_sessions"]

ROWS = 1_500
SCHEMA = "`dist km` double, `paid.at` timestamp_ntz, `weather ``now``` string, `größe` double, copy int, late int"


@pytest.fixture(scope="module")
def flights(spark: SparkSession) -> DataFrame:
    """Flights whose columns have odd names: late ones are far and in snow; 40 have no label, and ``copy`` would tell it."""
    draw = random.Random(7)
    rows = []
    for number in range(ROWS):
        far, snow = draw.uniform(0, 100), draw.random() < 0.3
        late = int(draw.random() < (0.9 if far > 60 or snow else 0.1))
        rows.append((far, number * 3_600, "snow" if snow else draw.choice(["sun", "rain"]), draw.random(),
                     late, None if number % 40 == 7 else late))
    frame = spark.createDataFrame(rows, "a double, b bigint, c string, d double, e int, f int")
    return frame.withColumn("b", sf.timestamp_seconds("b").cast("timestamp_ntz")).toDF(*spark.createDataFrame([], SCHEMA).columns)


@pytest.fixture(scope="module")
def classifier() -> sparkring.TorchClassifier:
    return sparkring.TorchClassifier(labelCol="late", numRanks=2, epochs=4, learningRate=0.01, hiddenSizes=[16])


@pytest.fixture(scope="module")
def fitted(flights: DataFrame, classifier: sparkring.TorchClassifier) -> PipelineModel:
    """The estimator as the only stage of a pipeline."""
    with pytest.warns(UserWarning, match="38 rows without a late are left out"):
        return Pipeline(stages=[classifier]).fit(flights)


def _model(fitted: PipelineModel) -> sparkring.TorchModel:
    [model] = fitted.stages
    assert isinstance(model, sparkring.TorchModel)
    return model


def test_explain_says_what_becomes_of_each_column_and_why(flights: DataFrame, classifier: sparkring.TorchClassifier) -> None:
    told = [line.split(None, 1) for line in classifier.explain(flights).splitlines()]
    assert "label, binary  0 or 1; 38 rows without one are left out" in classifier.explain(flights)
    assert any(line[0] == "copy" and "left out" in line[1] and "it equals late" in line[1] for line in told)
    assert "paid.at" in dict(told)


def test_names_in_other_capitals_are_the_frame_s_columns(flights: DataFrame, fitted: PipelineModel) -> None:
    found = look(flights, Asked("Late", weight="COPY"))
    assert (found.label.name, found.weight, [column.source for column in found.columns]) == ("late", "copy", flights.columns[:4])
    assert found.rows_of(flights, classes=True).columns[-2:] == ["label", "weight"]
    with pytest.raises(SourceError, match="the label late is among the features"):
        look(flights, Asked("late", features=("copy", "LATE")))
    capitals = flights.toDF("Dist KM", "PAID.at", "Weather `Now`", "Größe", "copy", "late")
    scored = fitted.transform(capitals)
    assert scored.columns[:4] == capitals.columns[:4]
    assert scored.exceptAll(fitted.transform(flights)).isEmpty()


def test_predictions_compose_with_spark_ml_s_evaluators_and_keep_all_columns(flights: DataFrame, fitted: PipelineModel) -> None:
    scored = fitted.transform(flights)
    assert scored.columns == [*flights.columns, "rawPrediction", "probability", "prediction"]
    assert dict(scored.dtypes)["prediction"] == "double"
    assert scored.drop("rawPrediction", "probability", "prediction").exceptAll(flights).isEmpty()
    labelled = scored.where("late IS NOT NULL").persist()
    assert BinaryClassificationEvaluator(labelCol="late").evaluate(labelled) > 0.8
    assert MulticlassClassificationEvaluator(labelCol="late", metricName="accuracy").evaluate(labelled) > 0.75
    assert _model(fitted).validation["auc"] > 0.7
    labelled.unpersist()


def test_columns_of_one_name_that_are_no_features_are_carried_along(flights: DataFrame, fitted: PipelineModel) -> None:
    twice = flights.select(sf.lit(1).alias("id"), "*", sf.lit(2).alias("id"))
    scored = fitted.transform(twice)
    assert scored.columns == [*twice.columns, "rawPrediction", "probability", "prediction"]
    assert [(row[0], row[-4]) for row in scored.limit(2).collect()] == [(1, 2)] * 2
    assert scored.toDF(*map(str, range(len(scored.columns)))).drop("0", "7").exceptAll(fitted.transform(flights)).isEmpty()


def test_a_saved_pipeline_predicts_the_same_and_a_touched_file_is_refused(
        flights: DataFrame, fitted: PipelineModel, tmp_path: Path) -> None:
    fitted.save(str(tmp_path / "saved"))
    loaded = PipelineModel.load(str(tmp_path / "saved"))
    assert loaded.transform(flights).exceptAll(fitted.transform(flights)).isEmpty()
    assert (_model(loaded).uid, _model(loaded).explain()) == (_model(fitted).uid, _model(fitted).explain())
    with pytest.raises(ConfigError, match=r"exists already; give another path, or write\(\)\.overwrite\(\)"):
        _model(fitted).save(str(tmp_path / "saved"))
    _model(fitted).save(str(tmp_path / "alone"))
    _model(fitted).write().overwrite().save(str(tmp_path / "alone"))
    for file in sorted(each for each in (tmp_path / "alone").rglob("*") if each.is_file()):
        kept = file.read_bytes()
        assert not kept.startswith(b"\x80"), "a pickle"
        file.write_bytes(kept.replace(b"late", b"lat3") if b"late" in kept else kept[:-1] + b"?")
        with pytest.raises((CheckpointDamaged, DocumentDamaged)):
            sparkring.TorchModel.load(str(tmp_path / "alone"))
        file.write_bytes(kept)
    assert sparkring.TorchModel.load(str(tmp_path / "alone")).getLabelCol() == "late"


def test_rows_to_score_that_changed_are_refused_and_a_new_category_is_not(flights: DataFrame, fitted: PipelineModel) -> None:
    snow = "weather `now`"
    new = fitted.transform(flights.limit(5).drop("late", "copy").withColumn(snow, sf.lit("hail")))
    assert all(0 < row["probability"][1] < 1 for row in new.collect())
    for changed, said in (
            (flights.drop("dist km"), "the DataFrame to transform has no column dist km"),
            (flights.withColumn("dist km", sf.lit("far")), "column dist km is string now, and it was a number when the model was fitted"),
            (flights.withColumn("prediction", sf.lit(1)), "has a column prediction already"),
            (flights.toDF("dist km", "paid.at", snow, "größe", "copy", "GRÖSSE").withColumnRenamed("GRÖSSE", "Größe"),
             "has 2 columns größe and Größe")):
        with pytest.raises(SourceError, match=said):
            fitted.transform(changed)


def test_a_null_vector_is_null_in_each_of_its_elements(spark: SparkSession) -> None:
    found = look(frame := spark.createDataFrame(
        [(Vectors.dense(number, 1.5), number % 2) for number in range(8)] + [(None, 0)],
        StructType([StructField("v", VectorUDT()), StructField("label", IntegerType())])), Asked("label", features=("v",)))
    assert found.columns[0].length == 2
    rows = [tuple(row) for row in found.rows_of(frame, classes=True).collect()]
    assert rows == [*((float(number), 1.5, number % 2) for number in range(8)), (None, None, 0)]


@pytest.mark.parametrize(("query", "said"), [
    pytest.param("SELECT *, late AS label FROM flights WHERE late > 5", "has no rows", id="no rows"),
    pytest.param("SELECT *, 1 AS label FROM flights", "has the value 1 in all", id="one value"),
    pytest.param("SELECT *, CAST(NULL AS INT) AS label FROM flights", "is null in all", id="no value"),
    pytest.param("SELECT *, `dist km` AS label FROM flights", "use TorchRegressor, or group its values", id="a number for a class"),
    pytest.param("SELECT * FROM flights", "has no column label", id="no label"),
    pytest.param("SELECT late AS label, copy AS a, copy AS A FROM flights", "2 columns a and A", id="the same name twice"),
])
def test_a_frame_that_cannot_be_learned_from_is_refused_in_one_sentence(
        spark: SparkSession, flights: DataFrame, tmp_path: Path, query: str, said: str) -> None:
    flights.createOrReplaceTempView("flights")
    with pytest.raises(SparkringError, match=said) as refused:
        sparkring.TorchClassifier(workspace=str(tmp_path / "never"), numRanks=2).fit(spark.sql(query))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "never").exists()
    assert not [table for table in spark.catalog.listTables() if table.name.startswith("sparkring_")]
