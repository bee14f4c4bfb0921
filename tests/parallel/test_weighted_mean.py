"""With weights, a step follows the exact gradient of the weighted mean, however rows and weights fall to the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.linalg import norm
from torch import Tensor

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.conf.schema import TabularModelConfig, TrainConfig
from sparkring.models.build import Shapes, build_model
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.clock import clock_of
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.precision import PRECISIONS
from sparkring.pipelines.training.job.tasks import LossSum, loss_of
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from sparkring.pipelines.training.strategies.step import Inputs, train_step
from sparkring.pipelines.training.strategies.step_times import StepTimes
from sparkring.pipelines.training.train_rank import train_rank
from tests.support.training import largest_difference, train_config, weights_of_run

ROWS, CLASSES = 12, 3
TASKS = ("binary", "multiclass")
WEIGHTS = [0.5, 0.0, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.5, 0.1, 7.0, 1e-6]
FLOAT64 = PRECISIONS["float64"]
CPU = torch.device("cpu")
NO_CATEGORIES = torch.empty(ROWS, 0, dtype=torch.int64)


def _loss(task: str) -> LossSum:
    return loss_of(task, None, TrainConfig())  # type: ignore[arg-type]  # of these two tasks, neither reads the preprocessing


def _model(task: str) -> Any:
    torch.manual_seed(7)
    return build_model(TabularModelConfig(hidden=(5,)), Shapes(num_numeric=4, num_outputs=CLASSES if task == "multiclass" else 1)).double()


def _rows(task: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(CLASSES if task == "multiclass" else 2, (ROWS,), generator=generator)
    return torch.randn(ROWS, 4, dtype=torch.float64, generator=generator), labels if task == "multiclass" else labels.double()


def _ring_gradients(context: RankContext, split: Sequence[int],
                    weights: Sequence[float] | None) -> dict[str, tuple[list[float], float, float]]:
    """For each task the gradient that a step of the ring follows, its loss and its weight; rank r holds ``split[r]`` of the rows."""
    with Communicator(context) as communicator:
        return {task: _ring_gradient(communicator, task, split, weights) for task in TASKS}


def _ring_gradient(communicator: Communicator, task: str, split: Sequence[int],
                   weights: Sequence[float] | None) -> tuple[list[float], float, float]:
    context, model, (x, y) = communicator.context, _model(task), _rows(task)
    mine = slice(sum(split[:context.rank]), sum(split[:context.rank + 1]))
    tensors = {"numeric": x[mine], "categorical": NO_CATEGORIES[mine], "label": y[mine]}
    if weights is not None:
        tensors["weight"] = torch.tensor(weights, dtype=torch.float64)[mine]
    inputs = Inputs(names=("numeric", "categorical"), label="label", precision=FLOAT64, device=CPU, seed=1, weighted=weights is not None)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    ring = GradientRing(model.parameters(), communicator, bucket_mb=1e-4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    batch = Batch(0, tensors, split[context.rank], ROWS)
    result = train_step(model, batch, inputs, ring, optimizer, StepTimes(clock_of(CPU)), _loss(task))
    ring.close()
    assert result.updated
    return _flat(old - new.detach() for old, new in zip(before, model.parameters(), strict=True)), result.loss, result.weight


def _serial_gradient(task: str, weights: Sequence[float]) -> tuple[list[float], float]:
    """What torch alone gives: the loss of each row, times its weight, over the sum of the weights."""
    model, (x, y), w = _model(task), _rows(task), torch.tensor(weights, dtype=torch.float64)
    losses = torch.stack([_loss(task)(model(x[row:row + 1], NO_CATEGORIES[:1]), y[row:row + 1]) for row in range(ROWS)])
    mean = (losses * w).sum() / w.sum()
    mean.backward()
    return _flat(parameter.grad for parameter in model.parameters()), mean.item()


def _flat(tensors: Iterable[Tensor]) -> list[float]:
    return [value for tensor in tensors for value in tensor.flatten().tolist()]


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return float(norm(np.subtract(one, other)) / norm(other))


@pytest.mark.parallel
@pytest.mark.parametrize("split", [
    pytest.param([ROWS], id="one rank"), pytest.param([4, 8], id="two"), pytest.param([4, 4, 4], id="of three, one whose rows all weigh 0"),
    pytest.param([5, 0, 7], id="of three, one without rows")])
def test_the_ring_follows_the_gradient_of_the_weighted_mean(split: list[int]) -> None:
    found = run_on_ranks(len(split), _ring_gradients, split, WEIGHTS)
    for task in TASKS:
        wanted, wanted_loss = _serial_gradient(task, WEIGHTS)
        for gradient, loss, weight in (by_task[task] for by_task in found):
            assert _apart(gradient, wanted) < 1e-10
            assert (loss, weight) == pytest.approx((wanted_loss, sum(WEIGHTS)), rel=1e-12)
        assert _apart(_serial_gradient(task, [1.0] * ROWS)[0], wanted) > 0.1, "control: without weights it is another gradient"


@pytest.mark.parallel
def test_weights_of_one_change_no_bit_equal_ones_nothing_but_rounding_and_zeros_stop_the_step() -> None:
    def gradient(weights: Sequence[float] | None) -> list[float]:
        found: list[float] = run_on_ranks(2, _ring_gradients, [5, 7], weights)[0]["binary"][0]
        return found

    plain = gradient(None)
    assert gradient([1.0] * ROWS) == plain
    assert _apart(gradient([0.3] * ROWS), plain) < 1e-14
    assert not any(gradient([0.0] * ROWS))


LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "three ranks": (3, {}),
    "two of two": (4, {"replicas": [2, 2], "micro_batches": 4, "schedule": "zero_bubble"}),
    "last twice": (3, {"replicas": [1, 2], "micro_batches": 4, "recompute": "always"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weighted dataset and the same one without weights, each with the run of one process."""
    folder = tmp_path_factory.mktemp("weighted")
    for name, weighted in (("weighted", True), ("plain", False)):
        write_dataset(folder / name / "dataset", ([300, 211], [92]), weighted=weighted)
        run_on_ranks(1, train_rank, _job(folder / name, folder / name, ranks=1))
    return folder


def _job(dataset: Path, folder: Path, *, ranks: int, parallel: dict[str, Any] | None = None) -> dict[str, Any]:
    config = train_config(folder, model={"hidden": (16, 8)}, train={
        "num_ranks": ranks, "epochs": 2, "batch_rows": 100, "precision": "float64", "parallel": parallel or {},
        "optimizer": {"name": "adam", "lr": 0.01, "clip_norm": 0.05}})
    return TrainJob(config=config, dataset_url=Dataset(str(dataset / "dataset")).url, dataset_version=1, run_url=str(folder / "run"),
                    generation=0, lanes=24).model_dump(mode="json")


@pytest.mark.parallel
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_learns_from_weighted_rows_what_one_process_does(folder: Path, tmp_path: Path, name: str) -> None:
    ranks, parallel = LAYOUTS[name]
    run_on_ranks(ranks, train_rank, _job(folder / "weighted", tmp_path, ranks=ranks, parallel=parallel))
    assert largest_difference(weights_of_run(tmp_path), weights_of_run(folder / "weighted")) < 1e-10
    assert _train_losses(tmp_path) == pytest.approx(_train_losses(folder / "weighted"), rel=1e-10)


def test_control_weights_change_what_is_learned(folder: Path) -> None:
    assert largest_difference(weights_of_run(folder / "weighted"), weights_of_run(folder / "plain")) > 1e-3


def _train_losses(folder: Path) -> list[float]:
    return [record["train_loss"] for record in read_events(str(folder / "run")) if record["event"] == "epoch"]
