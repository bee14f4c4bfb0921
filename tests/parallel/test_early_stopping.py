"""Early stopping on ranks: where a run ends and which epoch it keeps depend on neither the layout nor a stop in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import Record, read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.model_files import load_card
from sparkring.pipelines.training.train_rank import train_rank
from tests.support.training import largest_difference, train_config, weights_of_run

EPOCHS = 30
STOPPING = {"patience_epochs": 2, "metric": "auc"}

pytestmark = pytest.mark.parallel


def _train(dataset: Path, folder: Path, *, ranks: int, generation: int = 0, epochs: int = EPOCHS, **settings: Any) -> dict[str, Any]:
    """Rank 0's summary of a run that overfits within a few epochs."""
    config = train_config(folder, model={"hidden": (32,)}, train={
        "num_ranks": ranks, "epochs": epochs, "batch_rows": 40, "precision": "float64", "early_stopping": STOPPING,
        "optimizer": {"name": "adam", "lr": 0.05, "schedule": "constant"}, **settings})
    job = TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"),
                   generation=generation, lanes=24)
    summary: dict[str, Any] = run_on_ranks(ranks, train_rank, job.model_dump(mode="json"))[0]
    return summary


def _events(folder: Path, kind: str) -> list[Record]:
    return [record for record in read_events(str(folder / "run")) if record["event"] == kind]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "dataset"
    write_dataset(folder, ([150, 50],), validation_rows=100)
    return folder


@pytest.fixture(scope="module")
def serial(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("serial")
    return folder, _train(dataset, folder, ranks=1)


def test_a_run_ends_once_the_metric_is_stale_keeps_its_best_epoch_and_says_why(serial: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = serial
    found = [record["validation"]["auc"] for record in _events(folder, "epoch")]
    assert len(found) == summary["epochs"] < EPOCHS
    best = found.index(max(found)) + 1
    assert (best, summary["epochs"]) == (summary["best_epoch"], best + 2)
    assert load_card(str(folder / "run")).epoch == best
    losses = [record["validation"]["loss"] for record in _events(folder, "epoch")]
    assert losses.index(min(losses)) + 1 != best, "control: the loss alone would have kept another epoch"
    (stopped,) = _events(folder, "stopped_early")
    assert stopped["text"] == summary["ended_early"]
    assert f"the held-out auc of {max(found):.4f} in epoch {best} was not improved" in stopped["text"]


def test_another_layout_and_a_resumed_run_end_at_the_same_epoch_with_the_same_model(
        dataset: Path, serial: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, wanted = serial
    stages = _train(dataset, tmp_path / "stages", ranks=2, parallel={"replicas": [1, 1], "micro_batches": 2})
    _train(dataset, tmp_path / "resumed", ranks=2, epochs=wanted["best_epoch"] + 1)  # ends with one stale epoch
    assert Checkpoints(str(tmp_path / "resumed/run")).latest()[0].document.position.stale_epochs == 1  # type: ignore[union-attr]
    resumed = _train(dataset, tmp_path / "resumed", ranks=3, generation=1)
    assert len(_events(tmp_path / "resumed", "epoch")) == wanted["epochs"]
    for name, summary in (("stages", stages), ("resumed", resumed)):
        assert [summary[key] for key in ("epochs", "best_epoch", "ended_early")] == [
            wanted[key] for key in ("epochs", "best_epoch", "ended_early")]
        assert largest_difference(weights_of_run(tmp_path / name), weights_of_run(folder)) < 1e-9
    again = _train(dataset, tmp_path / "resumed", ranks=2, generation=2)  # as after a kill between the last checkpoint and the model
    assert (again["epochs"], again["resumed_at"], again["interrupted"]) == (wanted["epochs"], wanted["steps"], False)
