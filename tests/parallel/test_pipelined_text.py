"""A decoder in stages, replicas and shards at once trains the weights of one process, embedding and output matrix tied or not.

Where they are tied it drops a quarter of what it makes: the same quarter everywhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.ranks import run_on_ranks
from sparkring.errors import LayoutRefused
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob, layout_of
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.stored.audit import audit
from tests.support.token_dataset import write_token_dataset
from tests.support.training import largest_difference, train_config, weights_of_run

GROUPS = (70, 30, 45, 52)
ROWS = sum(GROUPS)
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tied over two stages": (2, {"replicas": [1, 1], "micro_batches": 4}),
    "tied, first stage twice": (3, {"replicas": [2, 1], "micro_batches": 4, "schedule": "zero_bubble", "shard_optimizer": True}),
    "tied over three stages, by Horovod": (
        3, {"replicas": [1, 1, 1], "micro_batches": 3, "schedule": "gpipe", "transport": "horovod", "recompute": "except_last"}),
    "tied, a block a stage, more micro-batches than most steps have rows": (
        4, {"replicas": [1, 1, 1, 1], "micro_batches": 24, "schedule": "zero_bubble", "recompute": "always"}),
    "tied, two of two in chunks": (
        4, {"replicas": [2, 2], "micro_batches": 4, "schedule": "interleaved", "chunks_per_stage": 2, "shard_optimizer": True}),
    "tied over two stages' chunks": (2, {"replicas": [1, 1], "micro_batches": 4, "schedule": "interleaved", "chunks_per_stage": 2}),
    "three ranks without stages": (3, {}),
    "two shards": (2, {"shards": 2}),
    "untied, three shards": (3, {"shards": 3}),
    "two stages of two shards": (4, {"replicas": [1, 1], "shards": 2, "micro_batches": 4, "recompute": "always"}),
    "two replicas of two shards": (4, {"replicas": [2], "shards": 2, "shard_optimizer": True}),
    "two stages, the first twice, of two shards": (6, {"replicas": [2, 1], "shards": 2, "micro_batches": 4, "shard_optimizer": True}),
    "two stages, the last twice, of two shards": (
        6, {"replicas": [1, 2], "shards": 2, "micro_batches": 4, "schedule": "zero_bubble", "transport": "horovod"}),
}


def _job(dataset: Path, folder: Path, ranks: int, parallel: dict[str, Any], *, tied: bool = True, epochs: int = 2,
         generation: int = 0) -> TrainJob:
    model = {"kind": "text", "width": 8, "layers": 2, "heads": 4, "tied": tied, "dropout": 0.25 if tied else 0.0}
    config = train_config(folder, model=model, train={
        "num_ranks": ranks, "epochs": epochs, "batch_rows": 48, "seed": 3, "precision": "float64", "lanes": 24, "parallel": parallel,
        "optimizer": {"name": "adamw", "lr": 0.01, "schedule": "constant", "clip_norm": 0.5, "weight_decay": 0.01}})
    return TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"),
                    generation=generation, lanes=24)


def _run(job: TrainJob, ranks: int) -> dict[str, Any]:
    summary: dict[str, Any] = run_on_ranks(ranks, train_rank, job.model_dump(mode="json"))[0]
    return summary


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens") / "dataset"
    write_token_dataset(folder, GROUPS)
    return folder


@pytest.fixture(scope="module")
def serial(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Path, dict[str, Any]]]:
    """The whole model in one process, tied and not."""
    made = {}
    for tied in (True, False):
        folder = tmp_path_factory.mktemp("serial")
        made[tied] = folder, _run(_job(dataset, folder, 1, {}, tied=tied), 1)
    return made


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_trains_the_weights_of_one_process(
        dataset: Path, serial: dict[bool, tuple[Path, dict[str, Any]]], tmp_path: Path, name: str) -> None:
    ranks, parallel = LAYOUTS[name]
    tied = "untied" not in name
    folder, wanted = serial[tied]
    summary = _run(_job(dataset, tmp_path, ranks, parallel, tied=tied), ranks)
    assert largest_difference(weights_of_run(tmp_path), weights_of_run(folder)) < 1e-10
    assert summary["validation"] == pytest.approx(wanted["validation"], rel=1e-9)
    (tmp_path / "run" / "result.json").write_text(json.dumps(summary))
    proved = audit(str(tmp_path / "run"), dataset_url=str(dataset))
    assert (proved.rows, proved.repeated) == (ROWS, 0)
    steps = [record for record in read_events(str(tmp_path / "run")) if record["event"] == "step"]
    losses = {(record["epoch"], record["step"], record["loss"]) for record in steps}
    assert len(losses) == 2 * -(-ROWS // 48), "all ranks know the same loss"


def test_a_checkpoint_of_shards_goes_on_in_stages_and_alone(
        dataset: Path, serial: dict[bool, tuple[Path, dict[str, Any]]], tmp_path: Path) -> None:
    first: dict[str, Any] = {"replicas": [2], "shards": 2, "shard_optimizer": True}
    others: list[tuple[int, dict[str, Any]]] = [(2, {"replicas": [1, 1]}), (1, {}), (3, {"shards": 3})]
    for number, (ranks, parallel) in enumerate(others):
        folder = tmp_path / str(number)
        _run(_job(dataset, folder, 4, first, epochs=1), 4)
        assert Checkpoints(str(folder / "run")).numbers() == [-(-ROWS // 48)]
        _run(_job(dataset, folder, ranks, parallel, generation=1), ranks)
        assert largest_difference(weights_of_run(folder), weights_of_run(serial[True][0])) < 1e-10, str(parallel)


def test_shards_that_a_model_cannot_be_dealt_to_are_refused(dataset: Path, tmp_path: Path) -> None:
    job = _job(dataset, tmp_path, 5, {"shards": 5})
    with pytest.raises(LayoutRefused, match="4 heads cannot be dealt to 5 shards"):
        layout_of(job.config, Dataset(job.dataset_url).manifest(1))
