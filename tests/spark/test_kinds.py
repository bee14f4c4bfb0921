"""Images and texts the whole way: prepared, trained on two ranks, evaluated and scored; figures against numpy and torch."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.sql import SparkSession
from torch.nn import functional

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.training.job.model_files import load_model
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.export import export
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.report import report
from sparkring.spark_jobs.score import score
from sparkring.spark_jobs.spark.versions.arrow_frames import frame_of
from sparkring.spark_jobs.train import train
from tests.support.images import write_idx

pytest_plugins = ["tests.support.spark_sessions"]

TRAIN = {"num_ranks": 2, "epochs": 3, "batch_rows": 32, "optimizer": {"lr": 0.01, "schedule": "constant"}}


def _stripes(count: int) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], list[int]]:
    """Images of three kinds: bright rows, bright columns, a bright corner; noise over all."""
    noise = np.random.default_rng(5).integers(0, 60, (count, 8, 8))
    labels = [number % 3 for number in range(count)]
    noise[0::3, ::2] += 150
    noise[1::3, :, ::2] += 150
    noise[2::3, :4, :4] += 150
    return noise.astype(np.uint8), labels


@pytest.fixture(scope="module")
def images(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("images")
    pixels, labels = _stripes(400)
    write_idx(folder / "idx", "train", pixels[:301], labels[:301])
    write_idx(folder / "idx", "t10k", pixels[301:], labels[301:])
    query = """SELECT id AS row_id, CASE label WHEN 0 THEN 'rows' WHEN 1 THEN 'columns' ELSE 'corner' END AS label, image,
               CASE WHEN part = 't10k' THEN 'test' WHEN id % 4 = 0 THEN 'validation' ELSE 'train' END AS split FROM stripes"""
    config = parse_config({
        "name": "stripes", "workspace": str(folder / "workspace"), "run": "first", "train": TRAIN,
        "model": {"kind": "image", "widths": [8]},
        "prepare": {"sources": {"stripes": {"format": "idx", "path": str(folder / "idx")}}, "query": query, "task": "multiclass",
                    "label": "label", "features": {"image": {"column": "image", "channels": 1, "augment": {"crop_padding": 0}}},
                    "split": {"by": "column", "column": "split"}}}, origin="test")
    prepare(config, spark=spark)
    train(config, spark=spark)
    return config


@pytest.fixture(scope="module")
def texts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "code").mkdir()
    for number in range(80):
        (folder / f"code/{number}.txt").write_text("the quick brown fox jumps over the lazy dog. " * (10 + number % 5))
    config = parse_config({
        "name": "foxes", "workspace": str(folder / "workspace"), "run": "first", "train": TRAIN,
        "model": {"kind": "text", "width": 16, "layers": 1, "heads": 2},
        "prepare": {"sources": {"code": {"format": "text", "path": str(folder / "code")}}, "query": "SELECT * FROM code",
                    "task": "next_token", "features": {"tokens": {"column": "content", "document": "path", "length": 24}},
                    "split": {"by": "random", "validation_share": 0.2, "test_share": 0.2}}}, origin="test")
    prepare(config, spark=spark)
    train(config, spark=spark)
    return config


def _batch(config: Config, split: str) -> dict[str, torch.Tensor]:
    """All rows of a split as one batch."""
    dataset = Dataset(config.dataset)
    manifest = dataset.manifest()
    loader = Loader(SplitReader(dataset.store, manifest, split), LoaderConfig(batch_rows=10_000, seed=0, lanes=1), rank=0, num_ranks=1)
    (batch,) = loader.epoch(0)
    return batch.tensors


def _scores(config: Config, spark: SparkSession, **keys: Any) -> pa.Table:
    return pq.read_table(Path(score(config, spark=spark, **keys).url.removeprefix("file://")))


def test_images_are_told_apart_and_the_figures_are_those_of_the_model_itself(spark: SparkSession, images: Config) -> None:
    evaluation = evaluate(images, spark=spark)
    model, card = load_model(images.run_url)
    batch = _batch(images, "test")
    logits = model(image=batch["image"]).detach().double()
    network, base = evaluation["network"], evaluation["base_rate"]
    assert card.task == "multiclass"
    assert network["rows"] == 99
    assert network["loss"] == pytest.approx(float(functional.cross_entropy(logits, batch["label"])), rel=1e-5)
    assert network["accuracy"] == pytest.approx(float((logits.argmax(dim=1) == batch["label"]).double().mean()))
    assert network["accuracy"] > 0.9
    assert base["accuracy"] == pytest.approx(1 / 3)
    assert np.array(network["confusion"]).sum(axis=1).tolist() == torch.bincount(batch["label"]).tolist()
    shares = torch.bincount(_batch(images, "train")["label"]).double()
    shares /= shares.sum()
    assert base["loss"] == pytest.approx(-float(shares[batch["label"]].log().mean()))


def test_scored_images_have_a_class_by_its_name_and_a_probability_for_each(spark: SparkSession, images: Config) -> None:
    scored = _scores(images, spark)
    assert scored.column_names == ["row_id", "label", "prediction", "probability", "probabilities", "model", "dataset_version", "split"]
    assert set(scored["split"].to_pylist()) == {"test"}
    probabilities = np.array(scored["probabilities"].to_pylist())
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    classes = np.array(["columns", "corner", "rows"])
    assert classes[probabilities.argmax(axis=1)].tolist() == scored["prediction"].to_pylist()
    np.testing.assert_array_equal(probabilities.max(axis=1), scored["probability"].to_numpy())
    hits = np.mean([label == said for label, said in zip(scored["label"].to_pylist(), scored["prediction"].to_pylist(), strict=True)])
    assert hits == pytest.approx(evaluate(images, spark=spark)["network"]["accuracy"])


def test_given_image_files_are_scored_like_the_dataset_s(spark: SparkSession, images: Config) -> None:
    dataset, manifest = Dataset(images.dataset), Dataset(images.dataset).manifest()
    rows = pa.concat_tables(pq.read_table(dataset.store.path(file.path)) for file in manifest.splits["test"].files)
    given = frame_of(spark, rows.select(["row_id", "image"]))
    before = _scores(images, spark)
    found = pq.read_table(Path(score(images, spark=spark, frame=given).url.removeprefix("file://")))
    expected = dict(zip(before["row_id"].to_pylist(), before["prediction"].to_pylist(), strict=True))
    assert dict(zip(found["row_id"].to_pylist(), found["prediction"].to_pylist(), strict=True)) == expected


def test_texts_are_learned_and_the_figures_are_those_of_the_model_itself(spark: SparkSession, texts: Config) -> None:
    evaluation = evaluate(texts, spark=spark)
    model, card = load_model(texts.run_url)
    tokens = _batch(texts, "test")["tokens"]
    logits, targets = model(tokens=tokens)[:, :-1].detach(), tokens[:, 1:]
    real = targets != 257
    network, base = evaluation["network"], evaluation["base_rate"]
    assert card.task == "next_token"
    assert network["rows"] == int(real.sum())
    nats = functional.cross_entropy(logits[real], targets[real])
    assert network["loss"] == pytest.approx(float(nats), rel=1e-5)
    assert network["accuracy"] == pytest.approx(float((logits.argmax(dim=2) == targets)[real].double().mean()))
    feature = Dataset(texts.dataset).manifest().preprocessing.tokens
    assert feature is not None
    assert network["bits_per_byte"] == pytest.approx(network["loss"] / math.log(2) * feature.tokens["test"] / feature.text_bytes["test"])
    assert network["loss"] < base["loss"]
    train_targets = _batch(texts, "train")["tokens"][:, 1:]
    counts = torch.bincount(train_targets[train_targets != 257], minlength=258).double() + 1
    assert base["loss"] == pytest.approx(-float((counts / counts.sum()).log()[targets[real]].mean()))


def test_scored_texts_have_their_cost_in_nats_and_given_texts_are_refused_with_the_way_to_go(spark: SparkSession, texts: Config) -> None:
    scored = _scores(texts, spark)
    network = evaluate(texts, spark=spark)["network"]
    assert sum(scored["nats"].to_pylist()) / sum(scored["tokens_predicted"].to_pylist()) == pytest.approx(network["loss"])
    assert sum(scored["tokens_right"].to_pylist()) / sum(scored["tokens_predicted"].to_pylist()) == pytest.approx(network["accuracy"])
    with pytest.raises(SourceError, match="prepare them as a dataset version and score a split of it"):
        score(texts, spark=spark, frame=spark.createDataFrame([("a", "text")], "path string, content string"))


@pytest.mark.parametrize(("kind", "answers"), [("images", ("probability", "probabilities")), ("texts", ("nats", "tokens_right"))])
def test_an_exported_file_answers_as_scoring_does(spark: SparkSession, request: pytest.FixtureRequest, kind: str,
                                                  answers: tuple[str, ...]) -> None:
    config: Config = request.getfixturevalue(kind)
    loss = evaluate(config, spark=spark)["network"]["loss"]
    exported = export(config)
    assert (exported.split, exported.rows) == ("test", Dataset(config.dataset).manifest().splits["test"].rows)
    scored = _scores(config, spark).sort_by("row_id")
    found = _scores(config, spark, engine="onnx").sort_by("row_id")
    assert found.schema.equals(scored.schema)
    for name in answers:
        np.testing.assert_allclose(found[name].to_pylist(), scored[name].to_pylist(), rtol=1e-5, atol=1e-5, err_msg=name)
    page = Path(exported.card).read_text(encoding="utf-8")
    assert f"| Network | {loss:.4f} |" in page
    assert "ring: 2 ranks on cpu" in page


def test_the_report_of_such_a_job_says_how_good_the_network_is(spark: SparkSession, images: Config) -> None:
    network = evaluate(images, spark=spark)["network"]
    page = Path(report(images).path).read_text(encoding="utf-8")
    row = (r'<th scope="row">Network</th>', *(rf'<td class="number">{network[name]:.4f}</td>' for name in ("loss", "accuracy")))
    assert re.search(r"\s*".join(row), page)
    assert "residual stages of 8 channels" in page
