"""A residual network that normalises over micro-batches trains in stages as in one process, running statistics and all, and goes on
from a checkpoint in any other layout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.image_dataset import write_image_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from tests.support.training import largest_difference, train_config, weights_of_run

GROUPS = (50, 33, 40)
BATCH_ROWS = 24
STEPS = -(-sum(GROUPS) // BATCH_ROWS)
ALONE: dict[str, Any] = {"micro_batches": 4}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "two stages": (2, {"replicas": [1, 1], "micro_batches": 4}),
    "two of two, by Horovod, passes done again": (
        4, {"replicas": [2, 2], "micro_batches": 4, "schedule": "zero_bubble", "transport": "horovod", "recompute": "always"}),
    "three stages, the first twice, the optimizer shared out": (
        4, {"replicas": [2, 1, 1], "micro_batches": 4, "schedule": "gpipe", "recompute": "except_last", "shard_optimizer": True}),
    "two chunks a stage": (2, {"replicas": [1, 1], "micro_batches": 4, "schedule": "interleaved", "chunks_per_stage": 2}),
    "replicas alone": (2, {"micro_batches": 4}),
}


def _job(dataset: Path, folder: Path, ranks: int, parallel: dict[str, Any], *, epochs: int = 2, generation: int = 0) -> dict[str, Any]:
    config = train_config(folder, model={"kind": "image", "widths": (3, 4), "norm": "batch"}, train={
        "num_ranks": ranks, "epochs": epochs, "batch_rows": BATCH_ROWS, "seed": 3, "precision": "float64", "lanes": 24,
        "parallel": parallel, "optimizer": {"name": "adam", "lr": 0.01, "schedule": "constant", "clip_norm": 0.5}})
    return TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"),
                    generation=generation, lanes=24).model_dump(mode="json")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "dataset"
    write_image_dataset(folder, GROUPS)
    return folder


@pytest.fixture(scope="module")
def alone(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """The whole model in one process, in as many micro-batches; and what it said of the validation rows."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, run_on_ranks(1, train_rank, _job(dataset, folder, 1, ALONE))[0]["validation"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_trains_the_weights_and_the_statistics_of_one_process(
        dataset: Path, alone: tuple[Path, dict[str, float]], tmp_path: Path, name: str) -> None:
    (folder, validation), (ranks, parallel) = alone, LAYOUTS[name]
    summary = run_on_ranks(ranks, train_rank, _job(dataset, tmp_path, ranks, parallel))[0]
    wanted = weights_of_run(folder)
    assert any("running_var" in tensor for tensor in wanted)
    assert largest_difference(weights_of_run(tmp_path), wanted) < 1e-10
    assert summary["validation"] == pytest.approx(validation, rel=1e-9)


def test_control_another_number_of_micro_batches_trains_something_else(
        dataset: Path, alone: tuple[Path, dict[str, float]], tmp_path: Path) -> None:
    run_on_ranks(1, train_rank, _job(dataset, tmp_path, 1, {"micro_batches": 2}))
    assert largest_difference(weights_of_run(tmp_path), weights_of_run(alone[0])) > 1e-3


def test_a_checkpoint_of_two_stages_of_two_goes_on_in_stages_and_alone(
        dataset: Path, alone: tuple[Path, dict[str, float]], tmp_path: Path) -> None:
    ranks, first = LAYOUTS["two of two, by Horovod, passes done again"]
    others: list[tuple[int, dict[str, Any]]] = [(3, {"replicas": [1, 1, 1], "micro_batches": 4}), (1, ALONE)]
    for number, (then, parallel) in enumerate(others):
        folder = tmp_path / str(number)
        run_on_ranks(ranks, train_rank, _job(dataset, folder, ranks, first, epochs=1))
        assert Checkpoints(str(folder / "run")).numbers() == [STEPS]
        run_on_ranks(then, train_rank, _job(dataset, folder, then, parallel, generation=1))
        assert largest_difference(weights_of_run(folder), weights_of_run(alone[0])) < 1e-10, str(parallel)
