"""A network of parallel branches that knows nothing of ranks, with batch normalisation and dropout, trains in stages as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.image_dataset import write_image_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from tests.support.training import largest_difference, train_config, weights_of_run

ALONE: dict[str, Any] = {"micro_batches": 4}
STAGES: dict[str, Any] = {"replicas": [2, 1], "micro_batches": 4, "recompute": "always"}


def _job(dataset: Path, folder: Path, ranks: int, parallel: dict[str, Any], *, dropout: float = 0.25) -> dict[str, Any]:
    config = train_config(
        folder, model={"kind": "image", "network": "inception", "options": {"width": 2}, "dropout": dropout},
        train={"num_ranks": ranks, "epochs": 1, "batch_rows": 12, "seed": 3, "precision": "float64", "lanes": 24, "parallel": parallel,
               "optimizer": {"name": "sgd", "lr": 0.05, "schedule": "constant"}})
    return TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"),
                    generation=0, lanes=24).model_dump(mode="json")


def test_an_adapted_network_trains_in_stages_with_replicas_and_passes_done_again_as_in_one_process(tmp_path: Path) -> None:
    dataset, alone, stages, other = (tmp_path / name for name in ("dataset", "alone", "stages", "other"))
    write_image_dataset(dataset, (25, 16), shape=(1, 9, 9))  # the last step has 5 rows for 4 micro-batches
    validation = run_on_ranks(1, train_rank, _job(dataset, alone, 1, ALONE))[0]["validation"]
    staged = run_on_ranks(3, train_rank, _job(dataset, stages, 3, STAGES))[0]["validation"]
    wanted = weights_of_run(alone)
    assert any("running_var" in name for name in wanted)
    assert largest_difference(weights_of_run(stages), wanted) < 1e-9
    assert staged == pytest.approx(validation, rel=1e-8)
    run_on_ranks(1, train_rank, _job(dataset, other, 1, ALONE, dropout=0.0))
    assert largest_difference(weights_of_run(other), wanted) > 1e-3  # the control: dropout does something
