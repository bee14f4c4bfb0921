"""Scoring: what Spark writes is what the network says, row by row, and readers find whole scores only."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from sparkring import __main__ as cli
from sparkring.conf.schema import Config, SourceConfig
from sparkring.errors import (
    CheckpointDamaged,
    ConfigError,
    DatasetChanged,
    DatasetError,
    EnvironmentProblem,
    NotFinite,
    SourceError,
    StorageError,
)
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.s3 import S3Store
from sparkring.pipelines.training.job.model_files import load_model, save_model
from sparkring.spark_jobs.etl.sources.committed_files import read_committed
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.retraining.compare import compare
from sparkring.spark_jobs.score import ScoreResult, score
from sparkring.spark_jobs.scoring import portions
from sparkring.spark_jobs.scoring.columns import split_columns
from sparkring.spark_jobs.scoring.latest import latest_scores
from sparkring.spark_jobs.scoring.predict_split import predict_split
from tests.support import seams
from tests.support.configs import write
from tests.support.etl_connect import findings
from tests.support.etl_tables import COLUMNS, QUERY, etl_config, save_untrained, trips

pytest_plugins = ["tests.support.spark_sessions"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config(spark: SparkSession, prepared: Path, tmp_path: Path) -> Config:
    """A prepared dataset, shared, and an untrained model in a workspace of the test's own."""
    made = etl_config(prepared).model_copy(update={"workspace": str(tmp_path), "dataset_url": str(prepared / "workspace/dataset")})
    save_untrained(made)
    return made


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source and its prepared dataset."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(etl_config(folder), spark=spark)
    return folder


def _read(result: ScoreResult) -> pa.Table:
    return pq.read_table(Path(result.url.removeprefix("file://"))).sort_by("row_id")


def _expected(config: Config, split: str) -> pa.Table:
    """Row id, label and probability by plain torch, from the manifest's files."""
    dataset = Dataset(config.dataset)
    manifest = dataset.manifest()
    model, card = load_model(config.run_url)
    rows = pa.concat_tables(pq.read_table(dataset.store.path(file.path)) for file in manifest.splits[split].files).sort_by("row_id")
    numeric, categorical = (np.stack([rows[feature.column].to_numpy() for feature in features], axis=1)
                            for features in (card.preprocessing.numeric, card.preprocessing.categorical))
    with torch.inference_mode():
        logits = model(numeric=torch.from_numpy(numeric), categorical=torch.from_numpy(categorical.astype(np.int64)))
    return rows.select(["row_id", "late"]).append_column("probability", pa.array(torch.sigmoid(logits.double()).numpy()))


def _raw(spark: SparkSession, config: Config) -> Any:
    """The query's result, as a user would bring it."""
    trips = config.prepare.sources["trips"]
    assert isinstance(trips, SourceConfig)
    source = spark.read.csv(trips.path, header=True, nullValue="NA")
    source.select([sf.col(name).cast(kind) for name, kind in COLUMNS.items()]).createOrReplaceTempView("trips")
    return spark.sql(QUERY)


@pytest.mark.parametrize("batch_rows", [7, 8192])
def test_each_row_gets_what_the_network_says(spark: SparkSession, config: Config, batch_rows: int) -> None:
    config = config.model_copy(update={"score": config.score.model_copy(update={"batch_rows": batch_rows})})
    result = score(config, spark=spark)
    found, expected = _read(result), _expected(config, "test")
    assert result.rows == found.num_rows == expected.num_rows
    assert found.select(["row_id", "late"]).to_pydict() == expected.select(["row_id", "late"]).to_pydict()
    np.testing.assert_allclose(found["probability"].to_numpy(), expected["probability"].to_numpy(), rtol=1e-6)
    _, card = load_model(config.run_url)
    assert set(found["model"].to_pylist()) == {card.weights_sha256[:16]}
    assert set(found["dataset_version"].to_pylist()) == {1}
    assert set(found["split"].to_pylist()) == {"test"}
    assert found.column_names == ["row_id", "late", *split_columns("binary")]
    assert found["prediction"].to_pylist() == [int(one >= 0.5) for one in found["probability"].to_pylist()]
    assert found["prediction"].type == pa.int32()


def test_raw_rows_are_encoded_as_the_train_rows_were(spark: SparkSession, config: Config) -> None:
    result = score(config, spark=spark, frame=_raw(spark, config).where("late IS NOT NULL"))
    found = {row["row_id"]: row for row in _read(result).to_pylist()}
    for split in ("train", "validation", "test"):
        for row in _expected(config, split).to_pylist():
            assert found[row["row_id"]]["probability"] == pytest.approx(row["probability"], rel=1e-6)


def test_new_rows_keep_their_columns_and_need_no_label_no_id_and_no_ids_of_their_own(spark: SparkSession, config: Config) -> None:
    raw = _raw(spark, config)
    brought = raw.selectExpr("7 AS row_id", "km", "km2", "city", "map('a', array(1, NULL)) AS notes", "CAST(NULL AS DECIMAL(5,2)) AS price")
    expected = {row["km"]: row["probability"] for row in _read(score(config, spark=spark, frame=raw)).to_pylist()}
    for frame in (brought, brought.drop("row_id")):
        scored = spark.read.parquet(score(config, spark=spark, frame=frame).url)
        assert scored.dtypes == [*frame.dtypes, ("prediction", "int"), ("probability", "double")]
        rows = scored.collect()
        assert len(rows) == 900
        assert {row["km"]: row["probability"] for row in rows} == pytest.approx(expected, rel=1e-6)
        assert {row["notes"]["a"][0] for row in rows} == {1}
    with pytest.raises(SourceError, match="the rows have a column Probability, and a prediction adds another one of that name"):
        score(config, spark=spark, frame=brought.withColumn("Probability", sf.lit(1)))
    with pytest.raises(SourceError, match="the frame has 2 columns notes, and scores keep all its columns; drop all but one"):
        score(config, spark=spark, frame=brought.select("*", sf.lit(1).alias("Notes")))


def test_the_same_scores_are_reused_and_another_model_replaces_them(spark: SparkSession, config: Config) -> None:
    first = score(config, spark=spark)
    again = score(config, spark=spark)
    assert (again.url, again.rows, again.reused) == (first.url, first.rows, True)
    save_untrained(config, seed=1)
    other = score(config, spark=spark)
    assert (other.reused, other.url == first.url) == (False, False)
    store = open_store(config.scores)
    document = latest_scores(store)
    assert document is not None
    assert store.path(document.folder) == other.url.removeprefix("file://")
    assert sorted(entry.name for entry in Path(config.scores).iterdir()) == sorted(["_scores.json", document.folder])
    validation = score(config.model_copy(update={"score": config.score.model_copy(update={"split": "validation"})}), spark=spark)
    brought = score(config, spark=spark, frame=_raw(spark, config).limit(5))  # rows of the caller's: nothing replaces them
    third = score(config, spark=spark)
    assert (third.url, third.reused, _read(brought).num_rows) == (other.url, True, 5)
    everything = pq.read_table(config.scores)
    assert everything.num_rows == other.rows + validation.rows + 5
    assert spark.read.parquet(f"{config.scores}/*").count() == everything.num_rows


def test_a_scoring_that_fails_leaves_the_scores_before_it_alone(spark: SparkSession, config: Config) -> None:
    before = score(config, spark=spark)
    listing = sorted(Path(config.scores).rglob("*"))
    broken = _raw(spark, config).withColumn("km", sf.raise_error(sf.lit("the disk is gone")).cast("double"))
    with pytest.raises(Exception, match="the disk is gone"):
        score(config, spark=spark, frame=broken)
    assert sorted(Path(config.scores).rglob("*")) == listing
    assert score(config, spark=spark).url == before.url


def test_rows_without_a_feature_are_refused(spark: SparkSession, config: Config) -> None:
    frame = _raw(spark, config).withColumnRenamed("km2", "km_2")
    with pytest.raises(SourceError, match=r"have no column km2; did you mean 'km_2'\?; the model trips needs its 3 features"):
        score(config, spark=spark, frame=frame)
    assert not Path(config.scores).exists()


def test_a_scoring_that_is_cut_off_scores_only_the_files_that_are_left(
        spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.PORTIONS_FIRST_MB, 1e-6)
    monkeypatch.setattr(seams.PORTIONS_SHORT_S, 0.0)  # portions of one file each
    config = config.changed(score={"split": "train"})  # of several files
    files = Dataset(config.dataset).manifest().splits["train"].files
    wrote: list[Any] = []
    add = portions.Draft.add

    def cut_off(draft: portions.Draft, scored: Any, *, inputs: Any = ()) -> None:
        if len(wrote) == 1:
            scored.write.parquet(f"{config.workspace}/more")  # the next portion's files were there, but not listed
            draft_of = next(Path(config.scores).glob("_*/*/"))
            shutil.copy(next(Path(config.workspace, "more").glob("*.parquet")), draft_of / "part-unlisted.parquet")
            raise KeyboardInterrupt
        add(draft, scored, inputs=inputs)
        wrote.append(inputs)

    monkeypatch.setattr(seams.PORTIONS_DRAFT_ADD, cut_off)
    with pytest.raises(KeyboardInterrupt):
        score(config, spark=spark)

    def counted(draft: portions.Draft, scored: Any, *, inputs: Any = ()) -> None:
        add(draft, scored, inputs=inputs)
        wrote.append(inputs)

    monkeypatch.setattr(seams.PORTIONS_DRAFT_ADD, counted)
    assert not list(Path(config.scores).glob("[!_]*"))  # readers of tables see no draft
    result = score(config, spark=spark)
    assert wrote == [[file.path] for file in files]  # none twice
    assert len(files) == 2
    assert (result.rows, result.reused, _read(result)["row_id"].to_pylist()) == (
        sum(file.rows for file in files), False, _expected(config, "train")["row_id"].to_pylist())
    assert not list(Path(config.scores).glob("_*/"))
    assert score(config, spark=spark).reused


@pytest.mark.nightly
def test_scores_and_evaluations_are_of_the_version_that_the_config_names(spark: SparkSession, tmp_path: Path) -> None:
    first = etl_config(tmp_path, trips()[:850])
    prepare(first, spark=spark)
    save_untrained(first)
    before, evaluated = score(first, spark=spark), evaluate(first, spark=spark)
    prepare(etl_config(tmp_path, trips()), append=True, spark=spark)
    second = first.model_copy(update={"dataset_version": 2})
    appended, newer = score(second, spark=spark), evaluate(second, spark=spark)
    assert (before.rows, appended.rows, appended.reused) == (99, 149, False)
    assert (set(_read(appended)["dataset_version"].to_pylist()), pq.read_table(first.scores).num_rows) == ({2}, 149)
    assert (evaluated["network"]["rows"], newer["network"]["rows"], newer["dataset_version"]) == (99, 149, 2)
    assert newer["base_rate"]["loss"] != evaluated["base_rate"]["loss"]
    assert (evaluate(first, spark=spark), evaluate(second, spark=spark)) == (evaluated, newer)  # each is kept
    assert score(second, spark=spark).reused
    prepare(etl_config(tmp_path, trips()[20:]), spark=spark)  # version 3: encoded with figures of its own
    for job in (score, evaluate):
        with pytest.raises(DatasetError, match=r"version 3 of .* was encoded with other figures than version 1, on which the model was"):
            job(first.model_copy(update={"dataset_version": 3}), spark=spark)


def test_scores_are_of_exactly_the_rows_that_the_manifest_knows(
        spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(*known: Any, **asked: Any) -> Any:
        return predict_split(*known, **asked).where("row_id <> 8000")

    monkeypatch.setattr(seams.SCORE_PREDICT, losing)
    with pytest.raises(DatasetError, match=r"the scored rows have the digest \w{16}, the manifest says \w{16} of its \d+ rows"):
        score(config, spark=spark)
    assert not list(Path(config.scores).rglob("*"))
    monkeypatch.undo()
    assert score(config, spark=spark).rows == Dataset(config.dataset).manifest().splits["test"].rows  # the control


def test_champion_and_candidate_are_compared_row_by_row_and_an_answer_that_is_no_number_is_refused(
        spark: SparkSession, config: Config, tmp_path: Path) -> None:
    manifest, other = Dataset(config.dataset).manifest(), config.model_copy(update={"workspace": str(tmp_path / "other")})
    card = save_untrained(other, seed=1)
    losses = []
    for each in (config, other):
        rows = _expected(each, "test").to_pandas()
        losses.append(-np.log(np.where(rows["late"] == 1, rows["probability"], 1 - rows["probability"])))
    found = compare(spark, manifest, champion=config.run_url, candidate=other.run_url, batch_rows=64)
    assert found.rows == manifest.splits["test"].rows
    np.testing.assert_allclose([found.champion, found.candidate, found.deviation],
                               [losses[0].mean(), losses[1].mean(), np.std(losses[0] - losses[1], ddof=1)], rtol=1e-6)
    model, _ = load_model(other.run_url)
    save_model(other.run_url, {name: torch.full_like(tensor, torch.nan) for name, tensor in model.state_dict().items()}, card)
    with pytest.raises(NotFinite, match=rf"champion or candidate has no finite answer for {found.rows} of the {found.rows} rows"):
        compare(spark, manifest, champion=config.run_url, candidate=other.run_url, batch_rows=64)


def test_without_a_trained_model_there_are_no_scores(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    untrained = config.model_copy(update={"workspace": str(tmp_path / "other")})
    with pytest.raises(ConfigError, match="holds no run yet; run `sparkring train`"):
        score(untrained, spark=spark)
    (weights,) = Path(config.run_url).glob("model/*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(CheckpointDamaged, match="has SHA-256"):
        score(config, spark=spark)
    assert not Path(config.scores).exists()


def test_a_dataset_that_was_exchanged_under_the_model_is_refused(spark: SparkSession, config: Config) -> None:
    card = Path(config.run_url, "model/model.json")
    card.write_text(card.read_text().replace(Dataset(config.dataset).manifest().content_id, "0" * 64))
    with pytest.raises(DatasetError, match=r"version 1 of .* holds \w{16}, but the model was trained on 0000000000000000; train again"):
        score(config, spark=spark)


def test_a_file_that_was_changed_is_named_before_anything_is_computed(
        spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    config = etl_config(tmp_path)
    prepare(config, spark=spark)
    save_untrained(config)
    dataset = Dataset(config.dataset)
    test, train = (Path(dataset.store.path(dataset.manifest().splits[name].files[0].path)) for name in ("test", "train"))
    committed = test.read_bytes(), train.read_bytes()
    test.write_bytes(committed[0][:-1])
    for job in (score, evaluate):
        with pytest.raises(DatasetChanged, match=r"test/part-00000\.parquet is truncated: it has \d+ bytes, the manifest says"):
            job(config, spark=spark)
    file = write(tmp_path, "trips.yaml", config.model_dump(mode="json"))
    for command in ("score", "evaluate"):  # as a user sees it: one line, exit code 2
        monkeypatch.setattr(sys, "argv", ["sparkring", command, file])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr().err
        assert (ended.value.code, "test/part-00000.parquet is truncated" in said, "Traceback" in said) == (2, True, False)
    test.write_bytes(committed[0])
    train.unlink()
    with pytest.raises(DatasetChanged, match=r"train/part-00000\.parquet is missing"):
        evaluate(config, spark=spark)
    assert not Path(config.run_url, "evaluation.json").exists()
    assert score(config, spark=spark).rows == dataset.manifest().splits["test"].rows  # the control: the test split is whole
    train.write_bytes(committed[1])
    assert evaluate(config, spark=spark)["split"] == "test"


def test_where_spark_has_no_client_for_the_store_it_is_told_in_one_line(spark: SparkSession, config: Config) -> None:
    manifest = Dataset(config.dataset).manifest()
    files, store = manifest.splits["test"].files, open_store(config.dataset)
    bucket = S3Store("s3://bucket/prefix")  # nothing of it is asked: Spark has no class for it
    with pytest.raises(EnvironmentProblem, match=r"Spark cannot read s3://bucket/prefix: .*S3AFileSystem.*spark\.jars\.packages") as raised:
        read_committed(spark, bucket, files)
    assert "\n" not in str(raised.value)
    with pytest.raises(StorageError, match=r"Spark cannot read file:.*PATH_NOT_FOUND.*; check that its files exist"):
        read_committed(spark, store, [files[0].model_copy(update={"path": "gone.parquet"})])
    assert read_committed(spark, store, files).count() == manifest.splits["test"].rows  # the control


@pytest.mark.nightly
def test_over_spark_connect_everything_is_as_in_a_classic_session(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.support.etl_connect", str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
                          timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "connect" in found["session"]
    manifest = Dataset(config.dataset).manifest()
    assert found["rows"] == {name: split.rows for name, split in manifest.splits.items()}
    assert found["content_id"] == manifest.content_id
    np.testing.assert_allclose(found["probabilities"], _expected(config, "test")["probability"].to_numpy(), rtol=1e-6)
    assert found["auc"] == pytest.approx(evaluate(config, spark=spark)["logistic_regression"]["auc"], abs=1e-6)
    classic = findings(tmp_path / "classic", spark)
    assert found["findings"] == classic
    assert {met for *_, met in classic} == {False, True}
    assert found["new_rows"] == [900, 900]
