"""A dataset that was moved after a model was trained on it: the advice helps, and a link at the old address is enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.datasets import write_dataset
from sparkring.conf.schema import TabularModelConfig
from sparkring.errors import DatasetVersionNotFound, ReceiptError
from sparkring.pipelines.training.job.model_files import ModelCard, dataset_of
from sparkring.spark_jobs.scoring.split_rows import trained_on, version_for
from sparkring.spark_jobs.stored.audit import _manifest


@pytest.mark.parametrize("read", [trained_on, dataset_of])
def test_what_a_model_was_trained_on_is_to_be_brought_back(tmp_path: Path, read: Callable[[ModelCard], object]) -> None:
    dataset = write_dataset(tmp_path / "dataset", [[30]])
    manifest = dataset.manifest()
    card = ModelCard(name="m", model=TabularModelConfig(), preprocessing=manifest.preprocessing, dataset_url=dataset.url, dataset_version=1,
                     content_id=manifest.content_id, epoch=1, step=1, validation={}, code_version="test")
    read(card)
    (tmp_path / "dataset").rename(tmp_path / "moved")
    with pytest.raises(DatasetVersionNotFound, match=r"/dataset has no version 1 any more; if the dataset was moved, bring it back to this "
                                                     r"address, where the model was trained on it, e\.g\. by a link\.$"):
        read(card)
    with pytest.raises(DatasetVersionNotFound, match="has no version 2 any more; if the dataset was moved, bring it back"):
        version_for(card, 2)
    (tmp_path / "dataset").symlink_to(tmp_path / "moved")
    read(card)


def test_an_audit_takes_the_new_address(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", [[30]])
    start = {"dataset_version": 1, "manifest_sha256": dataset.manifest_sha256(1)}
    with pytest.raises(DatasetVersionNotFound, match=r"has no version 1 any more; .*, name its new address with --dataset\.$"):
        _manifest(start, str(tmp_path / "elsewhere"))
    assert _manifest(start, dataset.url) == dataset.manifest()
    with pytest.raises(ReceiptError, match="name the dataset that it was trained on"):
        _manifest(start | {"manifest_sha256": "0"}, dataset.url)
