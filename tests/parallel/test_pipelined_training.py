"""Training in stages from files: the weights of one process at any layout, every row once, checkpoints that fit any layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.errors import ConfigError
from sparkring.models.blocks import StageModule
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob, layout_of
from sparkring.pipelines.training.job.layout import Layout
from sparkring.pipelines.training.strategies.pipelined import PipelinedStrategy
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.reporting.facts.step import Timelines
from sparkring.spark_jobs.stored.audit import audit
from tests.support import seams
from tests.support.training import largest_difference, train_config, weights_of_run

FILES = ([700, 400], [331], [2, 570])
ROWS = 2003
LANES = 24
CLIP_NORM = 0.1
"""Smaller than the norm of most steps' gradients; a test sees that it changes what is learned."""
SERIAL: dict[str, Any] = {}
LAYOUTS: dict[str, dict[str, Any]] = {
    "two stages": {"replicas": [1, 1], "micro_batches": 4},
    "two of two": {"replicas": [2, 2], "micro_batches": 4, "schedule": "zero_bubble", "transport": "horovod"},
    "first twice": {"replicas": [2, 1], "micro_batches": 6, "recompute": "always"},
    "last twice": {"replicas": [1, 2], "micro_batches": 4, "cut": [1, 3], "schedule": "gpipe"},
    "three stages": {"replicas": [1, 1, 1], "micro_batches": 6, "cut": ["layers.0", "layers.4"]},
    "micro-batches alone": {"micro_batches": 6},
    "passes done again alone": {"recompute": "always"},
    "passes done again in some stages": {"replicas": [1, 1, 1], "micro_batches": 6, "recompute": ["always", "never", "except_last"]},
    "shared-out optimizer": {"replicas": [2, 1], "shard_optimizer": True},
    "shared-out optimizer alone": {"shard_optimizer": True},
}


def _job(dataset: Path, folder: Path, parallel: dict[str, Any], *, ranks: int, epochs: int = 2, generation: int = 0) -> dict[str, Any]:
    config = train_config(folder, model={"hidden": (16, 8)}, train={
        "num_ranks": ranks, "epochs": epochs, "batch_rows": 256, "seed": 5, "precision": "float64", "lanes": LANES, "parallel": parallel,
        "optimizer": {"name": "adam", "lr": 0.003, "schedule": "constant", "clip_norm": CLIP_NORM}})
    job = TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"),
                   generation=generation, lanes=LANES)
    return job.model_dump(mode="json")


def _ranks(parallel: dict[str, Any]) -> int:
    return sum(parallel.get("replicas", [2]))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "dataset"
    write_dataset(folder, FILES)
    return folder


@pytest.fixture(scope="module")
def serial(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serial")
    run_on_ranks(1, train_rank, _job(dataset, folder, SERIAL, ranks=1))
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_trains_the_weights_of_one_process(dataset: Path, serial: Path, tmp_path: Path, name: str) -> None:
    parallel = LAYOUTS[name]
    ranks = _ranks(parallel)
    hosts = (0,) * (ranks - ranks // 2) + (1,) * (ranks // 2) if name == "two of two" else ()
    job = _job(dataset, tmp_path, parallel, ranks=ranks)
    summaries = run_on_ranks(ranks, train_rank, job, hosts=hosts)
    assert largest_difference(weights_of_run(tmp_path), weights_of_run(serial)) < 1e-10
    (tmp_path / "run" / "result.json").write_text(json.dumps(summaries[0]))
    proved = audit(str(tmp_path / "run"), dataset_url=str(dataset))
    assert (proved.rows, proved.repeated) == (ROWS, 0)
    assert summaries[0]["validation"] == pytest.approx(_summary(serial), rel=1e-9)
    steps = [record for record in read_events(str(tmp_path / "run")) if record["event"] == "step"]
    assert {record["rank"] for record in steps if record["rows"]} == set(range(parallel.get("replicas", [ranks])[0]))
    assert len({(record["epoch"], record["step"], record["loss"]) for record in steps}) == 16, "all ranks know the same loss"
    timelines = Timelines()
    for record in read_events(str(tmp_path / "run")):
        if record["event"] == "timeline":
            timelines.add(record)
    shown = timelines.last_step()
    assert shown is not None
    assert (shown.epoch, shown.number, shown.schedule.replicas) == (2, 2, tuple(parallel.get("replicas", [ranks])))
    layout = _layout(job)
    assert layout is not None
    assert shown.schedule == layout.schedule


def _layout(document: dict[str, Any]) -> Layout | None:
    job = TrainJob.model_validate(document)
    return layout_of(job.config, Dataset(job.dataset_url).manifest(job.dataset_version))


def _summary(folder: Path) -> dict[str, float]:
    epochs = [record for record in read_events(str(folder / "run")) if record["event"] == "epoch"]
    best: dict[str, float] = min((record["validation"] for record in epochs), key=lambda metrics: metrics["loss"])
    return best


def test_a_checkpoint_of_two_stages_of_two_goes_on_in_any_layout(dataset: Path, serial: Path, tmp_path: Path) -> None:
    first: dict[str, Any] = {"replicas": [2, 2], "micro_batches": 4, "shard_optimizer": True}
    layouts: list[dict[str, Any]] = [first, {}, {"replicas": [1, 1, 1], "micro_batches": 3}, SERIAL]
    for number, (parallel, ranks) in enumerate(zip(layouts, (4, 4, 3, 1), strict=True)):
        folder = tmp_path / str(number)
        run_on_ranks(4, train_rank, _job(dataset, folder, first, ranks=4, epochs=1))
        assert Checkpoints(str(folder / "run")).numbers() == [8]
        run_on_ranks(ranks, train_rank, _job(dataset, folder, parallel, ranks=ranks, generation=1))
        assert largest_difference(weights_of_run(folder), weights_of_run(serial)) < 1e-10, str(parallel)


def _optimizer_state(context: RankContext, job: dict[str, Any]) -> dict[str, int]:
    """Elements that the optimizer of this rank keeps for each parameter, at the end of the run."""
    kept: dict[str, int] = {}
    close = PipelinedStrategy.close

    def counting(self: PipelinedStrategy) -> None:
        names: dict[Tensor, str] = {one: name for chunk in self._chunks.values() for name, one in chunk.named_parameters()}
        kept.update({names[parameter]: sum(tensor.numel() for tensor in state.values() if tensor.dim())
                     for parameter, state in self._optimizer.state.items()})
        close(self)

    seams.replace(seams.PIPELINED_STRATEGY_CLOSE, counting)
    train_rank(context, job)
    return kept


@pytest.mark.parametrize("shared", [True, pytest.param(False, id="the control: every replica keeps all")])
def test_a_shared_out_optimizer_keeps_the_state_of_each_parameter_on_one_replica(dataset: Path, tmp_path: Path, *, shared: bool) -> None:
    parallel = {"replicas": [2, 1], "cut": [3, 1], "shard_optimizer": shared}
    first, second, last = run_on_ranks(3, _optimizer_state, _job(dataset, tmp_path, parallel, ranks=3, epochs=1))
    weights = weights_of_run(tmp_path)
    assert {name: 2 * tensor.numel() for name, tensor in weights.items()} == first | second | last, "Adam's two moments of all"
    assert not last.keys() & (first | second).keys()
    if not shared:
        assert first == second
        return
    assert not first.keys() & second.keys()
    assert max(sum(first.values()), sum(second.values())) < 0.8 * sum((first | second).values())


def _passes_done_again(context: RankContext, job: dict[str, Any]) -> int:
    """How many forward passes of an epoch this rank's stage keeps nothing of."""
    again, forward = 0, StageModule.forward

    def counting(self: StageModule, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        nonlocal again
        again += self.training and not torch.is_grad_enabled()
        return forward(self, tensors)

    seams.replace(seams.STAGE_MODULE_FORWARD, counting)
    train_rank(context, job)
    return again


def test_each_stage_does_as_many_passes_again_as_it_is_told(dataset: Path, tmp_path: Path) -> None:
    steps, parallel = 8, LAYOUTS["passes done again in some stages"]
    done = run_on_ranks(3, _passes_done_again, _job(dataset, tmp_path, parallel, ranks=3, epochs=1))
    assert done == [6 * steps, 0, 5 * steps]


def test_what_cannot_be_laid_out_is_refused_with_the_reason(dataset: Path, tmp_path: Path) -> None:
    for parallel, ranks, found in (
            ({"replicas": [2, 1], "micro_batches": 6}, 2, "are 3 ranks, train.num_ranks=2"),
            ({"replicas": [2, 1], "micro_batches": 5}, 3, "not a multiple of a stage's 2 replicas"),
            ({"replicas": [1, 1], "micro_batches": 4, "chunks_per_stage": 2}, 2, "needs the schedule interleaved"),
            ({"replicas": [1] * 9, "micro_batches": 9}, 9, "the model has 4 blocks"),
            ({"replicas": [1, 1], "micro_batches": 4, "cut": ["nowhere"]}, 2, "no block is called 'nowhere'"),
            ({"cut": [2, 2]}, 2, "makes 2 runs of blocks")):
        with pytest.raises(ConfigError, match=found):
            _layout(_job(dataset, tmp_path, parallel, ranks=ranks))
