"""Each optimizer: serial training, and a run that goes on in another layout with its state sharded, end with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, save
from torch import Tensor

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.loop.restore import read_parts
from sparkring.pipelines.training.strategies.state import OPTIMIZER, unpack_state
from sparkring.pipelines.training.train_rank import train_rank
from tests.support import seams
from tests.support.training import largest_difference, train_config

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adagrad": {"lr": 0.05}, "rmsprop": {"lr": 0.002, "momentum": 0.5},
    "lars": {"lr": 1.0, "momentum": 0.9, "weight_decay": 0.001, "trust": 0.01},
    "nesterov": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True}, "adam": {"lr": 0.002},
    "adamw": {"lr": 0.002, "betas": (0.9, 0.95)}, "sgd": {"lr": 0.05, "momentum": 0.9}}
STATE = {"adagrad": {"sum", "step"}, "rmsprop": {"square_avg", "momentum_buffer", "step"}, "lars": {"momentum_buffer"},
         "nesterov": {"momentum_buffer"}, "sgd": {"momentum_buffer"},
         "adam": {"exp_avg", "exp_avg_sq", "step"}, "adamw": {"exp_avg", "exp_avg_sq", "step"}}
EPOCHS, LANES = 4, 24

pytestmark = pytest.mark.parallel


def _train(dataset: Path, folder: Path, optimizer: str, *, ranks: int, generation: int = 0, only: int | None = None,
           work: Callable[..., Any] = train_rank, **layout: Any) -> None:
    config = train_config(folder, model={"hidden": (16, 8)}, train={
        "num_ranks": ranks, "epochs": EPOCHS, "batch_rows": 60, "precision": "float64", "keep_checkpoints": 9,
        "optimizer": {"name": optimizer, "schedule": "one_cycle", **OPTIMIZERS[optimizer]}, **layout})
    job = TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"),
                   generation=generation, lanes=LANES)
    run_on_ranks(ranks, work, job.model_dump(mode="json"))
    if only is not None:  # forget what was done after so many epochs: the next generation goes on from there
        for number in [*Checkpoints(str(folder / "run")).numbers()][only:]:
            for path in (folder / "run/checkpoints").glob(f"{number}-*.json"):
                path.unlink()


def _without_the_optimizer_s_state(context: RankContext, job: dict[str, Any]) -> Any:
    """The control: a rank that takes up the weights and forgets the rest."""
    def forgetful(state: Iterable[bytes], *args: Any, **named: Any) -> None:
        weights = ({name: tensor for name, tensor in load(part).items() if not name.startswith(OPTIMIZER)} for part in state)
        unpack_state([save(part) for part in weights], *args, **named)

    seams.replace(seams.PIPELINED_UNPACK_STATE, forgetful)
    return train_rank(context, job)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "dataset"
    write_dataset(folder, ([200, 100],))
    return folder


SHARDED: dict[str, Any] = {"replicas": [2], "shard_optimizer": True}
SHARDED_STAGES: dict[str, Any] = {"replicas": [2, 1], "micro_batches": 2, "shard_optimizer": True}


@pytest.mark.parametrize("optimizer", ["adagrad", "rmsprop", "lars", *(pytest.param(name, marks=pytest.mark.nightly) for name in (
    "nesterov", "sgd", "adam", "adamw"))])
def test_sharded_state_of_two_ranks_taken_up_by_two_stages_that_shard_it_too_ends_as_serial_training(
        dataset: Path, tmp_path: Path, optimizer: str) -> None:
    _train(dataset, tmp_path / "serial", optimizer, ranks=1)
    _train(dataset, tmp_path / "moved", optimizer, ranks=2, only=2, parallel=SHARDED)
    _train(dataset, tmp_path / "moved", optimizer, ranks=3, generation=1, parallel=SHARDED_STAGES)
    serial, moved = _last(tmp_path / "serial"), _last(tmp_path / "moved")
    assert {name.rpartition("/")[2] for name in serial if name.startswith(OPTIMIZER)} == STATE[optimizer], "the state is whole"
    assert largest_difference(moved, serial) < 1e-10


def test_control_without_the_state_that_was_saved_it_does_not(dataset: Path, tmp_path: Path) -> None:
    _train(dataset, tmp_path / "serial", "lars", ranks=1)
    _train(dataset, tmp_path / "moved", "lars", ranks=2, only=2, parallel=SHARDED)
    _train(dataset, tmp_path / "moved", "lars", ranks=3, generation=1, work=_without_the_optimizer_s_state, parallel=SHARDED_STAGES)
    assert largest_difference(_last(tmp_path / "moved"), _last(tmp_path / "serial")) > 1e-4


def _last(folder: Path) -> dict[str, Tensor]:
    """The weights and the optimizer's state after the last epoch."""
    checkpoint = Checkpoints(str(folder / "run")).latest()[0]
    assert checkpoint is not None
    assert checkpoint.document.position.epoch == EPOCHS
    return {name: tensor for part in read_parts(checkpoint.state) for name, tensor in load(part).items()}
