"""Each optimizer: serial training, and a run that goes on in another layout with its state sharded, end with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.loop.restore import read_parts
from sparkring.pipelines.training.strategies.state import OPTIMIZER, weights_of
from sparkring.pipelines.training.train_rank import train_rank
from tests.support.training import largest_difference, train_config

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adagrad": {"lr": 0.05}, "rmsprop": {"lr": 0.002, "momentum": 0.5},
    "lars": {"lr": 1.0, "momentum": 0.9, "weight_decay": 0.001, "trust": 0.01},
    "nesterov": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True}, "adamw": {"lr": 0.002, "betas": (0.9, 0.95)}}
STATE = {"adagrad": {"sum", "step"}, "rmsprop": {"square_avg", "momentum_buffer", "step"}, "lars": {"momentum_buffer"},
         "nesterov": {"momentum_buffer"}, "adamw": {"exp_avg", "exp_avg_sq", "step"}}
EPOCHS, LANES = 4, 24

pytestmark = pytest.mark.parallel


def _train(dataset: Path, folder: Path, optimizer: str, *, ranks: int, generation: int = 0, only: int | None = None, **layout: Any) -> None:
    config = train_config(folder, model={"hidden": (16, 8)}, train={
        "num_ranks": ranks, "epochs": EPOCHS, "batch_rows": 60, "precision": "float64", "keep_checkpoints": 9,
        "optimizer": {"name": optimizer, "schedule": "one_cycle", **OPTIMIZERS[optimizer]}, **layout})
    job = TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"),
                   generation=generation, lanes=LANES)
    run_on_ranks(ranks, train_rank, job.model_dump(mode="json"))
    if only is not None:  # forget what was done after so many epochs: the next generation goes on from there
        for number in [*Checkpoints(str(folder / "run")).numbers()][only:]:
            for path in (folder / "run/checkpoints").glob(f"{number}-*.json"):
                path.unlink()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "dataset"
    write_dataset(folder, ([200, 100],))
    return folder


@pytest.mark.parametrize("optimizer", [
    "adagrad", "rmsprop", "lars", pytest.param("nesterov", marks=pytest.mark.nightly), pytest.param("adamw", marks=pytest.mark.nightly)])
def test_sharded_state_saved_by_two_ranks_and_taken_up_by_two_stages_ends_as_serial_training(
        dataset: Path, tmp_path: Path, optimizer: str) -> None:
    _train(dataset, tmp_path / "serial", optimizer, ranks=1)
    _train(dataset, tmp_path / "moved", optimizer, ranks=2, only=2, parallel={"replicas": [2], "shard_optimizer": True})
    _train(dataset, tmp_path / "moved", optimizer, ranks=2, generation=1, parallel={"replicas": [1, 1], "micro_batches": 2})
    states = {name: _last(tmp_path / name) for name in ("serial", "moved")}
    kinds = {name.rpartition("/")[2] for name in states["serial"] if name.startswith(OPTIMIZER)}
    assert kinds == STATE[optimizer], "the state is whole"
    assert largest_difference(states["moved"], states["serial"]) < 1e-10


def _last(folder: Path) -> dict[str, Any]:
    """The weights and the optimizer's state after the last epoch."""
    from sparkring.pipelines.training.strategies.state import _tensors_of

    checkpoint = Checkpoints(str(folder / "run")).latest()[0]
    assert checkpoint is not None
    assert weights_of(read_parts(checkpoint.state))
    return {name: tensor for part in read_parts(checkpoint.state) for name, tensor in _tensors_of(part).items()}
