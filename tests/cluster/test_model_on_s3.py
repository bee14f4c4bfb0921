"""A model that is larger than one request may be goes to a bucket in parts."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
import torch

from harness.datasets import write_dataset
from sparkring.conf.schema import ModelConfig
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.job.model_files import ModelCard, load_card, load_weights, save_model
from tests.support.http_faults import HttpFaults
from tests.support.s3_server import s3_server
from tests.support.training import train_config

URL = "s3://bucket/run"


def test_a_large_model_is_uploaded_in_parts_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_dataset(tmp_path / "dataset", ([20],)).manifest()
    model: ModelConfig = train_config(tmp_path).model
    card = ModelCard(name="large", model=model, preprocessing=manifest.preprocessing, dataset_url="d", dataset_version=1, content_id="c",
                     epoch=1, step=1, validation={}, code_version="test")
    weights = {"weight": torch.arange(5_000_000, dtype=torch.float32)}  # 20 MB, where a part has 8
    with s3_server(tmp_path) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        with HttpFaults() as seen:
            saved = save_model(URL, weights, card)
        assert sorted(seen.acts) == ["POST", "POST", "PUT", "PUT", "PUT", "PUT"]  # begin, three parts, end; and the card
        data = load_weights(URL, load_card(URL))
        assert load_card(URL) == saved
        with HttpFaults() as seen:  # the control: in one request
            open_store(URL).put("elsewhere", data)
        assert seen.acts == ["PUT"]
