"""Evaluation: exact metrics on the test split, beside baselines that another library confirms."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from harness.datasets import write_dataset
from sparkring import __main__ as cli
from sparkring.conf.schema import Config, TrainConfig
from sparkring.errors import ConfigError, DatasetError, NotFinite
from sparkring.pipelines.data.dataset.preprocessing import TokensFeature
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import score
from sparkring.spark_jobs.scoring.baselines import REGULARISATION
from sparkring.spark_jobs.scoring.class_metrics import evaluate_classes, evaluate_tokens
from tests.support import seams
from tests.support.configs import write
from tests.support.etl_tables import etl_config, save_untrained

pytest_plugins = ["tests.support.spark_sessions"]


@pytest.fixture(scope="module")
def config(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A prepared dataset and an untrained model."""
    made = etl_config(tmp_path_factory.mktemp("evaluate"))
    prepare(made, spark=spark)
    save_untrained(made)
    return made


@pytest.fixture(scope="module")
def evaluation(spark: SparkSession, config: Config) -> dict[str, Any]:
    """What evaluating it gives."""
    return evaluate(config, spark=spark)


def _split(config: Config, name: str) -> pa.Table:
    dataset = Dataset(config.dataset)
    return pa.concat_tables(pq.read_table(dataset.store.path(file.path)) for file in dataset.manifest().splits[name].files)


def _design(table: pa.Table) -> NDArray[np.float64]:
    """Numeric columns, then one column for each city id."""
    numeric = [table[name].to_numpy().astype(np.float64) for name in ("km", "km2")]
    return np.stack([*numeric, *((table["city"].to_numpy() == place).astype(np.float64) for place in range(3))], axis=1)


def test_the_network_is_evaluated_by_the_probabilities_that_scoring_writes(
        spark: SparkSession, config: Config, evaluation: dict[str, Any]) -> None:
    scored = pq.read_table(Path(score(config, spark=spark).url.removeprefix("file://")))
    label, probability = scored["late"].to_numpy(), scored["probability"].to_numpy()
    network = evaluation["network"]
    assert (network["rows"], network["positives"]) == (len(label), label.sum())
    assert network["auc"] == pytest.approx(roc_auc_score(label, probability))
    assert network["loss"] == pytest.approx(log_loss(label, probability))


def test_the_base_rate_is_the_train_share_for_every_row(config: Config, evaluation: dict[str, Any]) -> None:
    share = np.mean(_split(config, "train")["late"].to_numpy())
    label = _split(config, "test")["late"].to_numpy()
    base = evaluation["base_rate"]
    assert (base["auc"], base["average_precision"]) == (0.5, pytest.approx(label.mean()))
    assert base["loss"] == pytest.approx(-(label.mean() * math.log(share) + (1 - label.mean()) * math.log(1 - share)))
    assert base["calibration_error"] == pytest.approx(abs(share - label.mean()))


def test_logistic_regression_is_what_scikit_learn_makes_of_the_same_features(config: Config, evaluation: dict[str, Any]) -> None:
    train, test = _split(config, "train"), _split(config, "test")
    reference = LogisticRegression(C=1 / (REGULARISATION * train.num_rows), max_iter=1000, tol=1e-8)
    reference.fit(_design(train), train["late"].to_numpy())
    probability = reference.predict_proba(_design(test))[:, 1]
    found = evaluation["logistic_regression"]
    assert found["auc"] == pytest.approx(roc_auc_score(test["late"].to_numpy(), probability), abs=2e-3)
    assert found["loss"] == pytest.approx(log_loss(test["late"].to_numpy(), probability), abs=2e-3)
    assert found["auc"] > 0.9 > evaluation["base_rate"]["auc"]


def test_the_document_says_what_was_evaluated_and_is_reused_for_it_only(
        spark: SparkSession, config: Config, evaluation: dict[str, Any]) -> None:
    path = Path(config.run_url, "evaluation.json")
    manifest = Dataset(config.dataset).manifest()
    assert json.loads(path.read_text()) == evaluation
    assert (evaluation["split"], evaluation["dataset_version"], evaluation["content_id"]) == ("test", 1, manifest.content_id)
    path.write_text(json.dumps(evaluation | {"marked": True}))
    assert evaluate(config, spark=spark)["marked"]
    weights = save_untrained(config, seed=5).weights_sha256
    other = evaluate(config, spark=spark)
    assert (other["weights_sha256"], "marked" in other) == (weights, False)
    assert other["network"]["loss"] != evaluation["network"]["loss"]
    assert other["logistic_regression"]["auc"] == pytest.approx(evaluation["logistic_regression"]["auc"])
    save_untrained(config)  # what the other tests know
    path.write_text(json.dumps(evaluation))


def test_a_ring_of_stages_evaluates_as_spark_s_tasks_do(spark: SparkSession, config: Config, evaluation: dict[str, Any],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(config.run_url, "evaluation.json")
    committed = path.read_bytes()
    path.unlink()
    monkeypatch.setattr(seams.EVALUATE_PREDICT, None)  # no task of Spark holds the network now
    layout: dict[str, Any] = {"num_ranks": 2, "parallel": {"replicas": [1, 1], "micro_batches": 4}}
    staged = config.model_copy(update={"train": TrainConfig.model_validate(config.train.model_dump() | layout)})
    save_untrained(staged)  # the weights that the others evaluate
    found = evaluate(staged, spark=spark)
    path.write_bytes(committed)
    for model in ("network", "base_rate", "logistic_regression"):
        for name in ("rows", "positives", "loss", "auc", "average_precision", "calibration_error"):
            assert found[model][name] == pytest.approx(evaluation[model][name], rel=1e-4, abs=1e-6), f"{model}.{name}"


def test_a_damaged_document_ends_the_command_in_one_line(config: Config, evaluation: dict[str, Any], tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(config.run_url, "evaluation.json")
    committed = path.read_bytes()
    path.write_bytes(committed[:-20])
    monkeypatch.setattr(sys, "argv", ["sparkring", "evaluate", write(tmp_path, "trips.yaml", config.model_dump(mode="json"))])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = " ".join(capsys.readouterr().err.split())
    path.write_bytes(committed)
    assert (ended.value.code, "Traceback" in said) == (2, False)
    assert "evaluation.json is damaged: found no JSON" in said
    assert "delete it and run `sparkring evaluate` again" in said


def test_without_a_model_there_is_nothing_to_evaluate(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run yet; run `sparkring train`"):
        evaluate(config.model_copy(update={"workspace": str(tmp_path)}), spark=spark)


def test_a_dataset_without_a_test_split_is_refused(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    own = config.model_copy(update={"workspace": str(tmp_path)})
    write_dataset(Path(own.dataset), ([200], [101]))
    save_untrained(own)
    with pytest.raises(DatasetError, match="has no split 'test'; it has train, validation"):
        evaluate(own, spark=spark)


def test_an_answer_that_is_not_finite_is_no_class_and_costs_more_than_nothing(spark: SparkSession) -> None:
    rows = "(0, 'None', array(0.6D, 0.4D)), (1, NULL, array(NULL, NULL))"
    classes = spark.sql(f"SELECT * FROM VALUES {rows} AS t(y, prediction, probabilities)")
    with pytest.raises(NotFinite, match="not finite for 1 of 2 rows"):
        evaluate_classes(classes, label="y", classes=["None", "other"])
    assert evaluate_classes(classes.where("y = 0"), label="y", classes=["None", "other"])["accuracy"] == 1.0  # the control
    tokens = TokensFeature.model_validate({"column": "tokens", "length": 4, "vocabulary": 258, "end_id": 256, "pad_id": 257,
                                           "tokenizer_sha256": None, "tokens": {"test": 8}, "text_bytes": {"test": 8}})
    texts = spark.sql("SELECT * FROM VALUES (6.0D, 3, 1), (NULL, 3, 0) AS t(nats, tokens_predicted, tokens_right)")
    with pytest.raises(NotFinite, match="not finite for 1 of 2 rows"):
        evaluate_tokens(texts, tokens=tokens, split="test")
    assert evaluate_tokens(texts.where("nats > 0"), tokens=tokens, split="test")["loss"] == 2.0  # the control


def test_a_test_split_of_one_label_is_refused(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    own = config.model_copy(update={"workspace": str(tmp_path)})
    write_dataset(Path(own.dataset), ([200], [101]), test_rows=1)
    save_untrained(own)
    with pytest.raises(DatasetError,
                       match=r"all 1 rows of the test split of version 1 of .* have label \d, so every model would score the same"):
        evaluate(own, spark=spark)
    assert not Path(own.run_url, "evaluation.json").exists()


def test_slices_and_importance_stand_beside_the_metrics_and_an_evaluation_of_before_is_still_reused(
        spark: SparkSession, config: Config, evaluation: dict[str, Any], tmp_path: Path) -> None:
    too_few = f"the split has {evaluation['network']['rows']} rows, and they need at least 200"
    assert evaluation["slices"] == evaluation["importance"] == {"left_out": too_few}
    own = config.model_copy(update={"workspace": str(tmp_path)})
    write_dataset(Path(own.dataset), ([200], [101]), test_rows=900)
    save_untrained(own)
    found = evaluate(own, spark=spark)
    assert found["slices"]["rows"] == found["importance"]["rows"] == found["network"]["rows"] == 900
    for key, name in (("loss", "loss"), ("measure", "auc")):
        assert found["slices"][key] == pytest.approx(found["network"][name], rel=1e-6)
    assert {each["feature"] for each in found["importance"]["features"]} == {"height", "weight", "age", "colour"}
    document = Path(own.run_url, "evaluation.json")
    assert json.loads(document.read_text()) == found
    before = {key: value for key, value in found.items() if key not in ("slices", "importance")}
    document.write_text(json.dumps(before))
    assert evaluate(own, spark=spark) == before
