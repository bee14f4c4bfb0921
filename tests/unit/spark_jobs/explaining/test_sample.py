"""The sample of a split, and the rows that the network judges: the same as another library's figures of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from harness.datasets import NUMERIC, write_dataset
from sparkring.conf.schema import Config
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.job.model_files import ModelCard, save_model
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.spark_jobs.explaining.documents import Importance, LeftOut, Slices
from sparkring.spark_jobs.explaining.explain import explain
from sparkring.spark_jobs.explaining.sample import read_sample
from tests.support import seams
from tests.support.regression_dataset import as_regression
from tests.support.report_samples import sample_config


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Several files of several row groups."""
    return write_dataset(tmp_path / "dataset", [[400, 0, 300], [500, 200, 100]], test_rows=900)


def _table(dataset: Dataset, split: str) -> pa.Table:
    return pa.concat_tables(pq.read_table(dataset.store.path(file.path)) for file in dataset.manifest(1).splits[split].files)


def _trained(config: Config, manifest: Manifest, **changes: Any) -> ModelCard:
    torch.manual_seed(0)
    made = build_model(config.model, shapes_of(manifest.task, manifest.preprocessing))
    return save_model(config.run_url, made.state_dict(), ModelCard(**{
        "name": "test", "model": config.model, "task": manifest.task, "preprocessing": manifest.preprocessing,
        "dataset_url": config.dataset, "dataset_version": 1, "content_id": manifest.content_id, "epoch": 1, "step": 1, "validation": {},
        "code_version": "0", **changes}))


def test_a_small_split_is_read_whole(dataset: Dataset) -> None:
    rows, table = read_sample(dataset.store, dataset.manifest(1), "train"), _table(dataset, "train")
    assert len(rows) == 1_500
    assert np.array_equal(rows.numeric, np.stack([table[name].to_numpy() for name in NUMERIC], axis=1))
    assert np.array_equal(rows.ids[:, 0], table["colour"].to_numpy())
    assert np.array_equal(rows.labels, table["late"].to_numpy())


def test_of_a_large_one_rows_are_drawn_from_all_over_it_and_none_twice(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.SAMPLE_MOST_ROWS, 450)
    manifest, heights = dataset.manifest(1), _table(dataset, "train")["height"].to_numpy()
    places = {value: place for place, value in enumerate(heights)}
    groups = np.repeat(np.arange(5), [400, 300, 500, 200, 100])
    seen = set[int]()
    for seed in range(8):
        found = [places[value] for value in read_sample(dataset.store, manifest, "train", seed=seed).numeric[:, 0]]
        assert len(set(found)) == len(found) == 450
        seen |= set(groups[found])
    assert seen == {0, 1, 2, 3, 4}
    once, again = (read_sample(dataset.store, manifest, "train", seed=3) for _ in range(2))
    assert np.array_equal(once.numeric, again.numeric)


def test_slices_and_importance_are_of_the_network_that_was_saved(dataset: Dataset, tmp_path: Path) -> None:
    config, manifest = sample_config(tmp_path), dataset.manifest(1)
    assert config.dataset.endswith("dataset")
    card = _trained(config, manifest)
    found = explain(config.run_url, card, manifest, split="test", whole=True, batch_rows=128)
    slices, importance = Slices.model_validate(found["slices"]), Importance.model_validate(found["importance"])
    table = _table(dataset, "test")
    torch.manual_seed(0)
    model = build_model(config.model, shapes_of("binary", manifest.preprocessing)).eval()
    numeric = torch.from_numpy(np.stack([table[name].to_numpy() for name in NUMERIC], axis=1))
    with torch.inference_mode():
        logits = model(numeric=numeric, categorical=torch.from_numpy(table["colour"].to_numpy().astype(np.int64)[:, None]))
    probability, label = torch.sigmoid(logits.double()).numpy(), table["late"].to_numpy()
    assert (slices.rows, slices.split_rows, importance.rows) == (900, 900, 900)
    assert (slices.loss, importance.loss) == pytest.approx(2 * (log_loss(label, probability),))
    assert slices.measure == pytest.approx(roc_auc_score(label, probability))
    assert {group.feature for group in slices.groups} == {"colour", *NUMERIC}
    assert {each.feature for each in importance.features} == {"colour", *NUMERIC}


def test_of_classes_the_share_of_wrong_ones_is_told_and_of_numbers_the_mean_error(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", [[700]], test_rows=800)
    numbers, fitted = as_regression(tmp_path / "dataset")
    config, number = sample_config(tmp_path), numbers.manifest(2)
    card = _trained(config, number, content_id=number.content_id)
    slices = Slices.model_validate(explain(config.run_url, card, number, split="test", whole=True, batch_rows=300)["slices"])
    labels = _table(numbers, "test")["weight"].to_numpy()
    assert slices.measure_name == "mae"
    assert slices.measure == pytest.approx(np.abs(labels - fitted.mean).mean(), rel=0.2)  # an untrained network is near the mean
    assert slices.loss == pytest.approx(np.square(labels - fitted.mean).mean(), rel=0.4)

    binary = numbers.manifest(1)
    classes = binary.model_copy(update={"task": "multiclass", "label": "colour", "classes": 4, "preprocessing": (
        binary.preprocessing.model_copy(update={"categorical": (), "classes": ("none", "blue", "green", "red")}))})
    card = _trained(config, classes)
    found = Slices.model_validate(explain(config.run_url, card, classes, split="test", whole=True, batch_rows=300)["slices"])
    assert found.measure_name == "error_rate"
    assert found.measure == pytest.approx(0.75, abs=0.1)  # of four classes
    assert found.loss == pytest.approx(np.log(4), abs=0.1)


@pytest.mark.parametrize(("whole", "test_rows", "reason"), [
    pytest.param(False, 900, "the model is cut into stages or shards", id="a model in stages"),
    pytest.param(True, 150, "the split has 150 rows, and they need at least 200", id="too few rows"),
])
def test_what_cannot_be_computed_is_left_out_with_a_reason(tmp_path: Path, whole: bool, test_rows: int, reason: str) -> None:
    manifest = write_dataset(tmp_path / "dataset", [[300]], test_rows=test_rows).manifest(1)
    config = sample_config(tmp_path)
    found = explain(config.run_url, _trained(config, manifest), manifest, split="test", whole=whole, batch_rows=128)
    for key in ("slices", "importance"):
        assert LeftOut.model_validate(found[key]).left_out.startswith(reason)


def test_a_network_whose_loss_is_not_finite_is_left_out(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", [[300]], test_rows=300, nan_row=300 + 257 + 5)
    config, manifest = sample_config(tmp_path), dataset.manifest(1)
    found = explain(config.run_url, _trained(config, manifest), manifest, split="test", whole=True, batch_rows=128)
    assert found["importance"]["left_out"] == "the network's loss is not finite for 1 held-out rows"
