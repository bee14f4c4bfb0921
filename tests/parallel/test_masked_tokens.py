"""Masked tokens on ranks, in stages and in shards: the weights and metrics of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.ranks import run_on_ranks
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.row_schema import LABEL, ROW_ID
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.pipelines.training.train_rank import train_rank
from tests.support.token_dataset import PAD, write_token_dataset
from tests.support.training import largest_difference, train_config, weights_of_run

GROUPS = (70, 30, 45)
Run = tuple[Path, dict[str, Any]]


def _run(dataset: Dataset, folder: Path, ranks: int, parallel: dict[str, Any]) -> Run:
    config = train_config(folder, model={"kind": "text", "width": 8, "layers": 2, "heads": 2, "dropout": 0.25}, train={
        "num_ranks": ranks, "epochs": 2, "batch_rows": 48, "seed": 3, "precision": "float64", "lanes": 24, "parallel": parallel,
        "optimizer": {"name": "adamw", "lr": 0.01, "schedule": "constant"}})
    job = TrainJob(config=config, dataset_url=dataset.url, dataset_version=1, run_url=str(folder / "run"), generation=0, lanes=24)
    return folder, run_on_ranks(ranks, train_rank, job.model_dump(mode="json"))[0]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_token_dataset(tmp_path_factory.mktemp("tokens") / "dataset", GROUPS, masked=True)


@pytest.fixture(scope="module")
def serial(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _run(dataset, tmp_path_factory.mktemp("serial"), 1, {})


@pytest.mark.parametrize(("ranks", "parallel"), [
    pytest.param(2, {}, id="two ranks"),
    pytest.param(3, {"replicas": [2, 1], "micro_batches": 4, "schedule": "zero_bubble"}, id="unequal stages"),
    pytest.param(2, {"shards": 2}, id="two shards", marks=pytest.mark.nightly),
    pytest.param(4, {"replicas": [1, 1], "shards": 2, "micro_batches": 4}, id="stages of shards", marks=pytest.mark.nightly)])
def test_every_layout_trains_the_weights_of_one_process(
        dataset: Dataset, serial: Run, tmp_path: Path, ranks: int, parallel: dict[str, Any]) -> None:
    folder, found = _run(dataset, tmp_path, ranks, parallel)
    assert largest_difference(weights_of_run(folder), weights_of_run(serial[0])) < 1e-10
    assert found["validation"] == pytest.approx(serial[1]["validation"], rel=1e-9)
    assert set(found["validation"]) == {"loss", "accuracy"}


def _epoch(dataset: Dataset, split: str, *, epoch: int = 0, num_ranks: int = 1, batch_rows: int = 16) -> dict[str, torch.Tensor]:
    """All rows of an epoch by row id, from all ranks."""
    def batches() -> Iterator[dict[str, torch.Tensor]]:
        for rank in range(num_ranks):
            reader = SplitReader(dataset.store, dataset.manifest(), split)
            config = LoaderConfig(batch_rows=batch_rows, seed=3, lanes=6)
            for batch in Loader(reader, config, rank=rank, num_ranks=num_ranks).epoch(epoch):
                yield {name: tensor.clone() for name, tensor in batch.tensors.items()}

    made = list(batches())
    joined = {name: torch.cat([each[name] for each in made]) for name in made[0]}
    return {name: tensor[joined[ROW_ID].argsort()] for name, tensor in joined.items()}


def test_a_row_has_the_same_masks_on_any_number_of_ranks_and_others_in_the_next_epoch(dataset: Dataset) -> None:
    one, three = _epoch(dataset, "train"), _epoch(dataset, "train", num_ranks=3, batch_rows=31)
    for name in ("tokens", LABEL):
        assert torch.equal(one[name], three[name]), name
    assert not torch.equal(one[LABEL], _epoch(dataset, "train", epoch=1)[LABEL])


def test_held_out_rows_have_the_same_masks_in_each_epoch(dataset: Dataset) -> None:
    first, second = _epoch(dataset, "validation"), _epoch(dataset, "validation", epoch=1, num_ranks=2)
    assert torch.equal(first["tokens"], second["tokens"])
    assert torch.equal(first[LABEL], second[LABEL])


def test_a_masked_position_sees_both_sides(dataset: Dataset) -> None:
    manifest = dataset.manifest()
    config = train_config(Path(), model={"kind": "text", "width": 8, "layers": 1, "heads": 2}, train={})
    shapes = shapes_of(manifest.task, manifest.preprocessing)
    network = build_model(config.model, shapes)
    tokens = torch.arange(6)[None]
    changed = tokens.clone()
    changed[0, 5] = PAD - 1
    assert shapes.masked
    assert not torch.equal(network(tokens=tokens)[:, 0], network(tokens=changed)[:, 0])
