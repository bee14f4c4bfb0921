"""Starting from given weights on ranks: every layout starts from the same ones, and a run that resumes does not start again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from harness.ranks import run_on_ranks
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.pipelines.training.loop.given import parts_of
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.run.given import with_given_weights
from tests.support.token_dataset import write_token_dataset
from tests.support.training import largest_difference, train_config, weights_of_run

pytestmark = pytest.mark.parallel

MODEL = {"kind": "text", "width": 8, "layers": 2, "heads": 4}
STILL = {"name": "sgd", "lr": 1e-15}
"""Learns nothing that could be seen, so the run's model is what it started from."""
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "two ranks": (2, {}), "two stages of two shards": (4, {"replicas": [1, 1], "shards": 2, "micro_batches": 4}),
    "two stages, the first twice": (3, {"replicas": [2, 1], "micro_batches": 4})}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_token_dataset(tmp_path_factory.mktemp("rows") / "dataset", (70, 30, 45, 52))


@pytest.fixture(scope="module")
def given(rows: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of weights that no seed of these tests draws."""
    manifest = rows.manifest()
    torch.manual_seed(1234)
    model = build_model(train_config(Path(), model=MODEL).model, shapes_of(manifest.task, manifest.preprocessing)).double()
    path = tmp_path_factory.mktemp("given") / "given.safetensors"
    save_file({name: tensor + torch.randn_like(tensor) for name, tensor in model.state_dict().items()}, path)
    return path


def _train(rows: Dataset, folder: Path, weights: Path | None, layout: tuple[int, dict[str, Any]] = (1, {}), *, epochs: int = 1,
           generation: int = 0, partial: bool = False, optimizer: dict[str, Any] | None = None) -> dict[str, Tensor]:
    """The model of a run."""
    ranks, parallel = layout
    model = MODEL | ({} if weights is None else {"weights": str(weights), "weights_partial": partial})
    config = with_given_weights(train_config(folder, model=model, train={
        "num_ranks": ranks, "epochs": epochs, "batch_rows": 48, "precision": "float64", "lanes": 24, "parallel": parallel,
        "optimizer": optimizer or STILL}))
    job = TrainJob(config=config, dataset_url=rows.url, dataset_version=1, run_url=str(folder / "run"), generation=generation, lanes=24)
    run_on_ranks(ranks, train_rank, job.model_dump(mode="json"))
    return weights_of_run(folder)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_starts_from_the_given_weights(rows: Dataset, given: Path, tmp_path: Path, name: str) -> None:
    assert largest_difference(_train(rows, tmp_path, given, LAYOUTS[name]), load_file(given)) < 1e-12


def test_what_a_file_lacks_is_drawn_from_the_seed(rows: Dataset, given: Path, tmp_path: Path) -> None:
    weights = load_file(given)
    lacking, unequal = sorted(weights)[:2]
    save_file({name: torch.ones(3) if name == unequal else tensor for name, tensor in weights.items() if name != lacking},
              tmp_path / "part.safetensors")
    found = _train(rows, tmp_path / "partial", tmp_path / "part.safetensors", LAYOUTS["two stages of two shards"], partial=True)
    drawn = _train(rows, tmp_path / "drawn", None)
    assert largest_difference(drawn, weights) > 0.1, "control: the seed draws other weights"
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, (drawn if name in (lacking, unequal) else weights)[name], rtol=0, atol=1e-12)


def test_a_run_that_resumes_does_not_start_again(rows: Dataset, given: Path, tmp_path: Path) -> None:
    learning = {"name": "sgd", "lr": 0.5, "schedule": "constant"}
    whole = _train(rows, tmp_path / "whole", given, epochs=2, optimizer=learning)
    _train(rows, tmp_path / "resumed", given, (2, {}), epochs=1, optimizer=learning)
    copied = tmp_path / "copied.safetensors"
    copied.write_bytes(given.read_bytes())
    resumed = _train(rows, tmp_path / "resumed", copied, epochs=2, generation=1, optimizer=learning)
    assert largest_difference(resumed, whole) < 1e-10


def test_weights_are_broadcast_in_parts_of_limited_size(given: Path) -> None:
    weights = load_file(given)
    parts = [load(part) for part in parts_of(weights, most_bytes=1000)]
    assert {name: tensor.tolist() for part in parts for name, tensor in part.items()} == {
        name: tensor.tolist() for name, tensor in weights.items()}
    sizes = [sum(tensor.nbytes for tensor in part.values()) for part in parts]
    assert 1 < len(parts) < len(weights)
    assert all(size <= 1000 or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
