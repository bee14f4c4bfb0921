"""Masked tokens the whole way: prepared, trained on two ranks, evaluated, scored and reported; figures against torch."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from pyspark.sql import SparkSession
from torch.nn import functional

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, ExportRefused
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.training.job.model_files import load_model
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.export import export
from sparkring.spark_jobs.generate import generate
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.report import report
from sparkring.spark_jobs.score import score
from sparkring.spark_jobs.train import train

pytest_plugins = ["tests.support.spark_sessions"]

PAD, MASK = 257, 258


@pytest.fixture(scope="module")
def trained(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "code").mkdir()
    for number in range(80):
        (folder / f"code/{number}.txt").write_text("the quick brown fox jumps over the lazy dog. " * (10 + number % 5))
    config = parse_config({
        "name": "foxes", "workspace": str(folder / "workspace"), "run": "first",
        "train": {"num_ranks": 2, "epochs": 3, "batch_rows": 32, "optimizer": {"lr": 0.01, "schedule": "constant"}},
        "model": {"kind": "text", "width": 16, "layers": 1, "heads": 2},
        "prepare": {"sources": {"code": {"format": "text", "path": str(folder / "code")}}, "query": "SELECT * FROM code",
                    "task": "masked_tokens", "features": {"tokens": {"column": "content", "document": "path", "length": 24}},
                    "split": {"by": "random", "validation_share": 0.2, "test_share": 0.2}}}, origin="test")
    prepare(config, spark=spark)
    train(config, spark=spark)
    return config


def _batch(config: Config, split: str) -> dict[str, torch.Tensor]:
    """All rows of a split as one batch, with the masks of seed 0 and epoch 0 if they are held out."""
    dataset = Dataset(config.dataset)
    reader = SplitReader(dataset.store, dataset.manifest(), split)
    (batch,) = Loader(reader, LoaderConfig(batch_rows=10_000, seed=0, lanes=1), rank=0, num_ranks=1).epoch(0)
    return batch.tensors


def test_the_figures_are_those_of_the_model_itself_on_the_masked_tokens(spark: SparkSession, trained: Config) -> None:
    network, base = (evaluate(trained, spark=spark)[name] for name in ("network", "base_rate"))
    model, card = load_model(trained.run_url)
    batch = _batch(trained, "test")
    found = batch["label"] != PAD
    logits, targets = model(tokens=batch["tokens"]).detach()[found], batch["label"][found]
    assert card.task == "masked_tokens"
    assert set(network) == {"rows", "loss", "accuracy"}
    assert network["rows"] == len(targets)
    assert network["loss"] == pytest.approx(float(functional.cross_entropy(logits, targets)), rel=1e-5)
    assert network["accuracy"] == pytest.approx(float((logits.argmax(dim=1) == targets).double().mean()))
    train_targets = _batch(trained, "train")["label"]  # of seed 0 and epoch 0, too
    counts = torch.bincount(train_targets[train_targets != PAD], minlength=259).double() + 1
    assert base["loss"] == pytest.approx(-float((counts / counts.sum()).log()[targets].mean()))
    assert network["loss"] < base["loss"]


def test_the_dataset_holds_the_tokens_themselves(trained: Config) -> None:
    manifest = Dataset(trained.dataset).manifest()
    stored = pq.read_table(Dataset(trained.dataset).store.path(manifest.splits["test"].files[0].path))
    assert stored.column_names == ["row_id", "tokens"]
    tokens = manifest.preprocessing.tokens
    assert tokens is not None
    assert tokens.mask is not None
    assert (tokens.vocabulary, tokens.pad_id, tokens.mask.mask_id) == (259, PAD, MASK)


def test_scores_are_of_each_row_s_masked_tokens(spark: SparkSession, trained: Config) -> None:
    scored = pq.read_table(Path(score(trained, spark=spark).url.removeprefix("file://")))
    network = evaluate(trained, spark=spark)["network"]
    predicted = sum(scored["tokens_predicted"].to_pylist())
    assert predicted == network["rows"]
    assert sum(scored["nats"].to_pylist()) / predicted == pytest.approx(network["loss"])
    assert sum(scored["tokens_right"].to_pylist()) / predicted == pytest.approx(network["accuracy"])


def test_the_report_says_how_good_the_network_is(spark: SparkSession, trained: Config) -> None:
    network = evaluate(trained, spark=spark)["network"]
    page = Path(report(trained).path).read_text(encoding="utf-8")
    row = (r'<th scope="row">Network</th>', *(rf'<td class="number">{network[name]:.4f}</td>' for name in ("loss", "accuracy")))
    assert re.search(r"\s*".join(row), page)


def test_generating_and_exporting_are_refused_with_the_reason(trained: Config) -> None:
    with pytest.raises(ConfigError, match="finds masked tokens, and a token that it adds would have nothing on its right"):
        generate(trained, ["the quick"])
    with pytest.raises(ExportRefused, match="whose masks depend on row ids, which an ONNX file does not take"):
        export(trained)
