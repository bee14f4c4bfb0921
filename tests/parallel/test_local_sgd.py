"""Local SGD on ranks: what an exchange gives is the mean that plain torch computes, and where it is not exact a control shows it.

The serial loop here trains the ranks' models one after the other with plain torch. It takes the rows of each from the event stream, which
is itself checked to hold every row once.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.datasets import NUMERIC, write_dataset
from harness.ranks import run_on_ranks
from sparkring.conf.schema import Config, TabularModelConfig
from sparkring.errors import DeadlinePassed
from sparkring.models.build import Shapes, build_model
from sparkring.models.networks import network
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.model_files import load_card
from sparkring.pipelines.training.strategies.relaxed.local_sgd import LocalSgdStrategy
from sparkring.pipelines.training.train_rank import train_rank
from tests.support import seams
from tests.support.regression_dataset import train_frame
from tests.support.training import largest_difference, records_in, train_config, weights_of_run

SIZE, EVERY, BATCH, EPOCHS = 3, 4, 100, 2
LANES = 25  # ranks get 9, 8 and 8 of them: unequal shares
ROWS = [700, 333]
STEPS = 11
DEADLINE_S = 3.0
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "schedule": "constant"}

pytestmark = pytest.mark.parallel


def _config(folder: Path, **settings: Any) -> Config:
    return train_config(folder, model={"hidden": (8,)}, train={
        "num_ranks": SIZE, "epochs": EPOCHS, "batch_rows": BATCH, "precision": "float64", "lanes": LANES, "record_rows": True, "seed": 5,
        "optimizer": SGD, **settings})


def _train(dataset: Path, folder: Path, *, ranks: int = SIZE, generation: int = 0, **settings: Any) -> dict[str, Any]:
    job = _job(dataset, folder, generation=generation, **settings)
    summary: dict[str, Any] = run_on_ranks(ranks, train_rank, job, hosts=(0, 0, 1)[:ranks])[0]
    return summary


class Scaled(nn.Module):
    """A layer whose result a single number scales."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.tensor(2.0)), nn.Linear(len(NUMERIC), 1)

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        logits: Tensor = self.scale * self.layer(numeric)
        return logits


def scaled(_shapes: Shapes) -> nn.Module:
    return Scaled()


def _train_scaled(context: RankContext, job: dict[str, Any]) -> dict[str, Any] | None:
    network(scaled)
    return train_rank(context, job)


def _job(dataset: Path, folder: Path, *, generation: int = 0, **settings: Any) -> dict[str, Any]:
    return TrainJob(config=_config(folder, **settings), dataset_url=Dataset(str(dataset)).url, dataset_version=1,
                    run_url=str(folder / "run"), generation=generation, lanes=LANES).model_dump(mode="json")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "dataset"
    write_dataset(folder, (ROWS,), validation_rows=100)
    return folder


@pytest.fixture(scope="module")
def runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs by what is special about them."""
    settings: dict[str, dict[str, Any]] = {
        "exact": {},
        "every step": {"strategy": {"kind": "local_sgd", "every_steps": 1}},
        "every fourth": {"strategy": {"kind": "local_sgd", "every_steps": EVERY}},
        "every fourth, kept": {"strategy": {"kind": "local_sgd", "every_steps": EVERY, "optimizer_state": "keep"}}}
    folders = {name: tmp_path_factory.mktemp("run") for name in settings}
    for name, folder in folders.items():
        _train(dataset, folder, **settings[name])
    return folders


def test_with_an_exchange_a_step_and_averaged_state_the_weights_are_the_exact_ones(runs: dict[str, Path]) -> None:
    exact = weights_of_run(runs["exact"])
    assert largest_difference(weights_of_run(runs["every step"]), exact) < 1e-10
    assert largest_difference(weights_of_run(runs["every fourth"]), exact) > 1e-4, "the control: with fewer exchanges they are not"


def test_the_momentum_of_a_single_number_is_averaged_too(dataset: Path, tmp_path: Path) -> None:
    settings_of: dict[str, dict[str, Any]] = {"exact": {}, "every step": {"strategy": {"kind": "local_sgd", "every_steps": 1}}}
    for name, settings in settings_of.items():
        folder, job = tmp_path / name, _job(dataset, tmp_path / name, epochs=1, **settings)
        job["config"]["model"] |= {"network": "scaled", "hidden": TabularModelConfig().hidden}
        run_on_ranks(SIZE, _train_scaled, job, hosts=(0, 0, 1))
        assert weights_of_run(folder)["network.scale"].dim() == 0
    assert largest_difference(weights_of_run(tmp_path / "every step"), weights_of_run(tmp_path / "exact")) < 1e-10


@pytest.mark.parametrize("run", ["every fourth", "every fourth, kept"])
def test_an_exchange_gives_the_mean_of_the_models_by_their_rows(dataset: Path, runs: dict[str, Path], run: str) -> None:
    weights, epoch = weights_of_run(runs[run]), load_card(str(runs[run] / "run")).epoch
    by_rows, losses = _serial(dataset, runs[run], keep="kept" in run)
    assert largest_difference(weights, by_rows[epoch - 1]) < 1e-10
    assert [record["train_loss"] for record in records_in(runs[run], "epoch")] == pytest.approx(losses, rel=1e-10)
    plain, _ = _serial(dataset, runs[run], keep="kept" in run, by_rows=False)
    assert largest_difference(weights, plain[epoch - 1]) > 1e-5, "the control: a mean that does not count rows"


def test_every_row_still_comes_once_an_epoch(runs: dict[str, Path]) -> None:
    for epoch in range(EPOCHS):
        ids = [row for record in records_in(runs["every fourth"]) if record["epoch"] == epoch for row in record["row_ids"]]
        assert sorted(ids) == list(range(sum(ROWS)))


def test_a_run_resumes_on_another_number_of_ranks_after_the_exchange_of_its_checkpoint(dataset: Path, tmp_path: Path) -> None:
    strategy = {"kind": "local_sgd", "every_steps": EVERY}
    _train(dataset, tmp_path, epochs=1, strategy=strategy, checkpoint_steps=3, keep_checkpoints=9)
    checkpoints = Checkpoints(str(tmp_path / "run"))
    steps = [checkpoints.document(number).position.step for number in checkpoints.numbers()]
    assert len(steps) > 1, "one in the epoch and one at its end"
    assert [step % EVERY for step in steps] == [0] * len(steps), "none lies between two exchanges"
    summary = _train(dataset, tmp_path, ranks=2, generation=1, num_ranks=2, strategy=strategy)
    assert (summary["resumed_at"], summary["epochs"]) == (STEPS, EPOCHS)
    ids = [row for record in records_in(tmp_path) if record["epoch"] == 1 for row in record["row_ids"]]
    assert sorted(ids) == list(range(sum(ROWS)))


def test_a_gradient_that_is_not_finite_counts_as_zero_and_all_ranks_learn_of_it_at_the_exchange(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", (ROWS,), nan_row=17)
    strategy = {"kind": "local_sgd", "every_steps": EVERY}
    summary = _train(tmp_path / "dataset", tmp_path / "skipped", epochs=1, strategy=strategy, on_nonfinite="skip")
    assert summary["steps"] == STEPS
    (warning,) = [record["text"] for record in records_in(tmp_path / "skipped", "warning")]
    (spoiled,) = [record for record in records_in(tmp_path / "skipped") if 17 in record["row_ids"]]
    first = spoiled["step"] // EVERY * EVERY
    assert warning.startswith(f"1 of the ranks' steps since step {first} of epoch 0 had a loss or gradient that is not finite")
    (epoch,) = records_in(tmp_path / "skipped", "epoch")
    assert 0 < epoch["train_loss"] < 2, "the other steps of the period count"
    assert all(tensor.isfinite().all() for tensor in weights_of_run(tmp_path / "skipped").values())
    with pytest.raises(AssertionError, match="NotFinite: 1 of the ranks' steps since step"):
        _train(tmp_path / "dataset", tmp_path / "stopped", epochs=1, strategy=strategy)


def _late_rank_1(context: RankContext, job: dict[str, Any], stands_still: bool) -> str:
    """Train with rank 1 late at the exchange by more than the deadline, or never there; returns the error."""
    learn, began = LocalSgdStrategy._learn, time.monotonic()

    def late(self: LocalSgdStrategy, batch: Batch) -> float:
        if context.rank == 1 and stands_still:
            os.kill(os.getpid(), signal.SIGSTOP)
        if context.rank == 1 and batch.step < 4:
            time.sleep(DEADLINE_S / 2)  # what a slow machine does; nobody waits for it
        return learn(self, batch)

    seams.replace(seams.LOCAL_SGD_LEARN, late)
    try:
        train_rank(replace(context, deadline_s=DEADLINE_S), job)
    except DeadlinePassed as error:
        return f"{error} ({time.monotonic() - began:.0f} s)"
    return ""


def test_a_rank_that_comes_late_to_an_exchange_by_more_than_the_deadline_is_waited_for(dataset: Path, tmp_path: Path) -> None:
    job = _job(dataset, tmp_path, num_ranks=2, strategy={"kind": "local_sgd"})
    assert run_on_ranks(2, _late_rank_1, job, False) == ["", ""]
    assert len(records_in(tmp_path, "epoch")) == EPOCHS
    job = _job(dataset, tmp_path / "stopped", num_ranks=2, epochs=1, strategy={"kind": "local_sgd"})
    assert "apart" in run_on_ranks(2, _late_rank_1, job, True, doomed=(1,))[0], "the control: one that stands still is not"


def _serial(dataset: Path, folder: Path, *, keep: bool, by_rows: bool = True) -> tuple[list[dict[str, Tensor]], list[float]]:
    """The weights and the mean loss after each epoch, of ranks whose models are averaged by hand."""
    frame, steps = train_frame(dataset), records_in(folder)
    models, steppers, loss = list[nn.Module](), list[torch.optim.SGD](), nn.BCEWithLogitsLoss(reduction="sum")
    for _ in range(SIZE):
        torch.manual_seed(5)
        models.append(build_model(_config(folder).model, Shapes(num_numeric=len(NUMERIC), cardinalities=(4,))).double())
        steppers.append(torch.optim.SGD(models[-1].parameters(), lr=0.1, momentum=0.9, weight_decay=0.01))
    weights, means = [], []
    for epoch in range(EPOCHS):
        total, learned = 0.0, [0] * SIZE
        for step in range(STEPS):
            for record in (record for record in steps if (record["epoch"], record["step"]) == (epoch, step)):
                rank, rows = record["rank"], frame.loc[list[int](record["row_ids"])]
                logits = models[rank](torch.tensor(rows[list(NUMERIC)].to_numpy(np.float64)),
                                      torch.tensor(rows[["colour"]].to_numpy(np.int64)))
                losses = loss(logits, torch.tensor(rows["late"].to_numpy(np.float64)))
                steppers[rank].zero_grad()
                (losses / len(rows)).backward()
                steppers[rank].step()
                total, learned[rank] = total + float(losses.detach()), learned[rank] + len(rows)
            if step % EVERY == EVERY - 1 or step == STEPS - 1:
                _average(models, steppers, learned if by_rows else [1] * SIZE, keep=keep)
                learned = [0] * SIZE
        weights.append({name: tensor.clone() for name, tensor in models[0].state_dict().items()})
        means.append(total / sum(ROWS))
    return weights, means


@torch.no_grad()
def _average(models: list[nn.Module], steppers: list[torch.optim.SGD], shares: list[int], *, keep: bool) -> None:
    def mean(tensors: list[Tensor]) -> None:
        value = sum((share * tensor for share, tensor in zip(shares, tensors, strict=True)), start=torch.zeros(())) / sum(shares)
        for tensor in tensors:
            tensor.copy_(value)

    for parameters in zip(*(model.parameters() for model in models), strict=True):
        mean(list(parameters))
        if not keep:
            mean([stepper.state[one]["momentum_buffer"] for one, stepper in zip(parameters, steppers, strict=True)])
