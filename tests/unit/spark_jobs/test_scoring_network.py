"""A network in a Python worker: loaded once, on the GPU of its task, asked in passes of about equal size."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from sparkring.conf.schema import TabularModelConfig
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.preprocessing import CategoricalFeature, NumericFeature, Preprocessing
from sparkring.pipelines.training.job.model_files import ModelCard, save_model
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.spark_jobs.scoring import network
from sparkring.spark_jobs.scoring.network import Network, ShippedWeights, answer, device_of
from sparkring.spark_jobs.scoring.portions import Input, _cut, key_of
from sparkring.spark_jobs.scoring.predict import Model
from tests.support import seams


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A random network of a number and a category of two texts, one of which is not ASCII."""
    features = Preprocessing(numeric=(NumericFeature(column="km", mean=0, std=1, nulls=0),), train_rows=9,
                             categorical=(CategoricalFeature(column="city", vocabulary=("Bern", "Z\u00fcrich")),))
    config = TabularModelConfig(hidden=(4,))
    torch.manual_seed(0)
    save_model(str(tmp_path), build_model(config, shapes_of("binary", features)).state_dict(), ModelCard(
        name="m", model=config, preprocessing=features, dataset_url="d", dataset_version=1, content_id="c", epoch=1, step=1, validation={},
        code_version="0"))
    return Model.of(str(tmp_path))


def _shipped(model: Model, **changes: Any) -> ShippedWeights:
    settings = {"card_json": model.card.model_dump_json(), "weights": model.weights, "key": "k", "raw": True, "batch_rows": 100}
    return ShippedWeights(**{**settings, **changes})


def _columns(rows: int) -> list[pd.Series]:
    texts = np.array([b"Bern", "Z\u00fcrich".encode(), None, b"Oslo", b"\xff"], object)
    return [pd.Series(np.arange(rows, dtype=np.float32)), pd.Series(texts[np.arange(rows) % 5])]


def test_texts_are_looked_up_and_what_is_unknown_or_no_text_has_id_0(model: Model) -> None:
    inputs = Network.load(_shipped(model), "cpu").inputs(_columns(6))
    assert inputs["categorical"].tolist() == [[1], [2], [0], [0], [0], [1]]
    assert inputs["numeric"].tolist() == [[0], [1], [2], [3], [4], [5]]
    stored = [_columns(3)[0], pd.Series(np.array([2, 0, 1], np.int32))]
    assert Network.load(_shipped(model, raw=False), "cpu").inputs(stored)["categorical"].tolist() == [[2], [0], [1]]


def test_a_batch_is_answered_in_passes_of_about_equal_size(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    answered = Network.answer

    def counted(self: Network, columns: Any) -> Any:
        sizes.append(len(columns[0]))
        return answered(self, columns)

    monkeypatch.setattr(seams.SCORING_NETWORK_ANSWER, counted)
    found = answer(_columns(10), _shipped(model, batch_rows=4, key="passes"))
    assert sizes == [3, 3, 4]
    whole = answer(_columns(10), _shipped(model, key="whole"))
    np.testing.assert_allclose(found["probability"], whole["probability"], rtol=1e-6)
    assert answer(_columns(0), _shipped(model))["probability"].shape == (0,)


def test_a_worker_loads_a_network_once_and_keeps_the_latest_few(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.SCORING_NETWORK_LOADED, {})
    loaded: list[str] = []
    load = Network.load

    def counted(shipped: ShippedWeights, device: str) -> Network:
        loaded.append(shipped.key)
        return load(shipped, device)

    monkeypatch.setattr(seams.SCORING_NETWORK_LOAD, counted)
    for key in ("a", "a", "b", "a", "c", "d", "e", "a"):
        answer(_columns(2), _shipped(model, key=key))
    assert loaded == ["a", "b", "c", "d", "e", "a"]
    assert len(network._LOADED) == network.KEPT


@pytest.mark.parametrize(("address", "visible", "expected"), [
    ("1", None, "cuda:1"), ("3", "2,3", "cuda:1"), ("0", "5", "cuda:0"), ("GPU-b", "GPU-a,GPU-b", "cuda:1")])
def test_the_gpu_is_the_one_that_spark_assigned(address: str, visible: str | None, expected: str) -> None:
    assert device_of(address, visible) == expected


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (100, 1), (101, 2), (300, 3), (10**9, 4)])
def test_a_portion_holds_whole_files_of_at_least_its_size(size: int, expected: int) -> None:
    some, left = _cut([Input(str(number), 100) for number in range(4)], size)
    assert (len(some), [*some, *left]) == (expected, [Input(str(number), 100) for number in range(4)])


def test_scores_of_other_rows_or_models_have_another_folder() -> None:
    assert key_of({"a": 1, "b": None}) == key_of({"b": None, "a": 1}) == hashlib.sha256(b'{"a": 1, "b": null}').hexdigest()[:16]
    assert key_of({"a": 1}) != key_of({"a": 2})
