"""Linear regression by each strategy ends at the analytic solution, or within a distance of it that is derived here.

Two ranks, float64, squared errors, sgd without momentum. Rank 0 has two of three lanes: 160 of the 240 rows of each step, rank 1 has 80.
The solution w* is least squares on the stored rows, by numpy. With e = w - w*, a gradient over some rows is H e + g: H is twice the mean of
x x', and g the gradient at w*. Over all rows g is 0; over the rows of one rank it is not.

    one full step an epoch      e <- (I - lr H) e, also where each rank makes a step of its own and models are averaged by rows
    labels without noise        g is 0 for any rows: each strategy goes on shrinking e
    several steps an epoch      what a step misses, because it knows weights of the epoch's start only (stale) or its rank's weights only
                                (local), is at most of the order of the rate of an epoch, h = steps * lr:

        |e after an epoch| <= a |e before it| + b      a = 1 - h m + (h L)^2 / 2 (1 - h L)      b = h^2 L G / 2 (1 - h L)

with m the least eigenvalue of H over all rows, and L and G the largest norms of H and g over the rows of one step of one rank, h L < 1.
Proof: in the epoch no e is longer than E <= (|e| + h G) / (1 - h L). So step k differs by at most k lr (L E + G) from the epoch's start.
The epoch is the full step (I - h H) e, since all g sum to 0, and lr L times these differences: h^2 L (L E + G) / 2 at most.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.datasets import NUMERIC, TARGET, write_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.data.dataset.row_schema import Standardisation
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.loop.restore import read_parts
from sparkring.pipelines.training.strategies.state import weights_of
from sparkring.pipelines.training.train_rank import train_rank
from tests.support.regression_dataset import as_regression, train_frame
from tests.support.training import records_in, train_config

RANKS, LANES, ROWS, BATCH = 2, 3, 960, 240
FULL = {"batch_rows": ROWS, "epochs": 20}
STALE = {"kind": "stale_sync", "bound": 3}
Vector = NDArray[np.float64]

pytestmark = pytest.mark.parallel


class Problem(NamedTuple):
    """A dataset, and what numpy knows of it."""

    dataset: Dataset
    x: Vector
    """(rows, 4): of each row, by its id, its numbers, and 1."""
    y: Vector
    """(rows,) standardised labels."""

    def solution(self) -> Vector:
        """The weights of least squares."""
        return np.linalg.lstsq(self.x, self.y)[0].astype(np.float64)

    def hessian(self, rows: Any = slice(None)) -> Vector:
        """Of the mean loss of these rows."""
        return 2 * self.x[rows].T @ self.x[rows] / len(self.x[rows])

    def gradient(self, rows: Any = slice(None)) -> Vector:
        """Of the mean loss of these rows, at the solution."""
        return 2 * self.x[rows].T @ (self.x[rows] @ self.solution() - self.y[rows]) / len(self.x[rows])


def _problem(folder: Path, *, noise: float) -> Problem:
    write_dataset(folder, ([500, 460],), validation_rows=50, noise=noise)
    stored, fitted = as_regression(folder, TARGET)
    return Problem(stored, *_numbers(folder, fitted))


def _numbers(folder: Path, fitted: Standardisation) -> tuple[Vector, Vector]:
    frame = train_frame(folder).sort_index()
    numbers = frame[list(NUMERIC)].to_numpy(np.float64)
    return np.column_stack([numbers, np.ones(ROWS)]), (frame[TARGET].to_numpy() - fitted.mean) / fitted.std


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    return _problem(tmp_path_factory.mktemp("noisy"), noise=0.5)


def _train(problem: Problem, folder: Path, *, lr: float, **settings: Any) -> Vector:
    """Train on two ranks; returns the weights after the last epoch."""
    config = train_config(folder, model={"network": "linear"}, train={
        "num_ranks": RANKS, "batch_rows": BATCH, "precision": "float64", "lanes": LANES, "record_rows": True,
        "optimizer": {"name": "sgd", "lr": lr, "schedule": "constant"}, **settings})
    config = config.changed(prepare=config.prepare.changed(task="regression"))
    job = TrainJob(config=config, dataset_url=problem.dataset.url, dataset_version=2, run_url=str(folder / "run"), generation=0,
                   lanes=LANES)
    run_on_ranks(RANKS, train_rank, job.model_dump(mode="json"))
    last = Checkpoints(str(folder / "run")).latest()[0]
    assert last is not None
    assert last.document.position.epoch == config.train.epochs
    weights = weights_of(read_parts(last.state))
    return np.append(weights["linear.weight"].numpy(), weights["linear.bias"].numpy())


def _distance(problem: Problem, weights: Vector) -> float:
    return float(np.linalg.norm(weights - problem.solution()))


def _best_rate(problem: Problem) -> float:
    """The rate whose slowest direction shrinks fastest: by (L - m) / (L + m) a step."""
    eigenvalues = np.linalg.eigvalsh(problem.hessian())
    return float(2 / (eigenvalues[0] + eigenvalues[-1]))


def _shares(folder: Path, epoch: int) -> list[list[int]]:
    """The rows of each step of each rank, in one epoch."""
    return [record["row_ids"] for record in records_in(folder) if record["epoch"] == epoch]


def _tolerance(problem: Problem, folder: Path, *, rate: float, epochs: int) -> float:
    """What the inequality above gives for ``epochs`` epochs of an overall rate ``rate`` each, from a distance of 2."""
    shares = [share for epoch in range(epochs) for share in _shares(folder, epoch)]
    largest = max(np.linalg.norm(problem.hessian(share), 2) for share in shares)
    steepest = max(np.linalg.norm(problem.gradient(share)) for share in shares)
    least = np.linalg.eigvalsh(problem.hessian())[0]
    a = 1 - rate * least + (rate * largest) ** 2 / (2 * (1 - rate * largest))
    b = rate ** 2 * largest * steepest / (2 * (1 - rate * largest))
    assert 0 < a < 1
    return float(a ** epochs * 2 + b / (1 - a))


@pytest.mark.parametrize("strategy", [pytest.param("exact", id="exact"), pytest.param("local_sgd", id="local SGD, averaged by rows")])
def test_with_one_full_step_an_epoch_the_weights_are_the_analytic_solution(noisy: Problem, tmp_path: Path, strategy: str) -> None:
    found = _train(noisy, tmp_path, lr=_best_rate(noisy), strategy=strategy, **FULL)
    assert np.abs(found - noisy.solution()).max() < 1e-8
    spread = float(np.linalg.eigvalsh(noisy.hessian())[-1])
    after_5 = records_in(tmp_path, "epoch")[5]["train_loss"] - np.mean((noisy.x @ noisy.solution() - noisy.y) ** 2)
    assert (2 * after_5 / spread) ** 0.5 > 1e-7, "the control: five epochs are too few"
    parts = _shares(tmp_path, 0)
    assert [len(part) for part in parts] == [640, 320]
    assert np.abs(np.mean([noisy.gradient(part) for part in parts], axis=0)).max() > 1e-3, "the control: a mean that does not count rows"
    assert np.abs(np.average([noisy.gradient(part) for part in parts], axis=0, weights=[640, 320])).max() < 1e-12


@pytest.mark.parametrize("strategy", [pytest.param(STALE, id="stale"), pytest.param("local_sgd", id="local, one exchange an epoch")])
def test_with_several_steps_an_epoch_labels_without_noise_lead_to_the_same(tmp_path: Path, strategy: Any) -> None:
    exact = _problem(tmp_path / "dataset", noise=0.0)
    assert np.abs(_train(exact, tmp_path, lr=0.15, epochs=25, strategy=strategy) - exact.solution()).max() < 1e-8


@pytest.mark.parametrize("bound", [0, 3])
def test_with_noise_stale_updates_end_within_the_derived_distance(noisy: Problem, tmp_path: Path, bound: int) -> None:
    found = _train(noisy, tmp_path, lr=0.15 / 4, epochs=40, strategy=STALE | {"bound": bound})
    assert max(record["staleness"] for record in records_in(tmp_path)) in range(min(bound, 1), bound + 1)
    assert 1e-8 < _distance(noisy, found) < _tolerance(noisy, tmp_path, rate=0.15, epochs=40) < 0.1


def test_with_noise_and_unequal_shards_local_sgd_ends_within_the_derived_distance_which_grows_with_the_rate(
        noisy: Problem, tmp_path: Path) -> None:
    near = _distance(noisy, _train(noisy, tmp_path / "near", lr=0.1 / 4, epochs=60, strategy="local_sgd"))
    assert {len(share) for share in _shares(tmp_path / "near", 0)} == {160, 80}
    assert 1e-8 < near < _tolerance(noisy, tmp_path / "near", rate=0.1, epochs=60) < 0.2
    assert _distance(noisy, _train(noisy, tmp_path / "far", lr=0.8 / 4, epochs=15, strategy="local_sgd")) > 2 * near
