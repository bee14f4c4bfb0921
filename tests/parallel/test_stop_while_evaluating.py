"""SIGTERM while an epoch is evaluated, which may take longer than anybody waits: saved at once, and evaluated by who goes on."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.evaluation.interruptible import Interruptible
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.strategies.step import train_step
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.stored.audit import audit
from tests.support import seams
from tests.support.training import begin_checkpoints_on_the_dot, largest_difference, train_config, weights_of_run

STEPS = 8
"""Of an epoch."""


def _job(dataset: Path, folder: Path, parallel: dict[str, Any], *, epochs: int, generation: int = 0,
         **train: Any) -> dict[str, Any]:
    config = train_config(folder, model={"hidden": (16, 8)}, train={
        "num_ranks": 2, "epochs": epochs, "batch_rows": 100, "precision": "float64", "lanes": 24, "parallel": parallel,
        "optimizer": {"name": "adam", "schedule": "constant"}, **train})
    return TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"),
                    generation=generation, lanes=24).model_dump(mode="json")


def _asked_while_evaluated(context: RankContext, job: dict[str, Any]) -> Any:
    as_it_was = Interruptible.epoch

    def asked(self: Interruptible, epoch: int) -> Generator[Batch]:
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        yield from as_it_was(self, epoch)

    seams.replace(seams.INTERRUPTIBLE_EPOCH, asked)
    return train_rank(context, job)


def _goes_back_to_it(context: RankContext, job: dict[str, Any]) -> Any:
    """Train; what follows the evaluating is not saved the first time, and the weights become huge before the second step after it."""
    begin_checkpoints_on_the_dot()
    commit = Checkpoints.commit
    calls: list[torch.nn.Module] = []
    refused: list[CheckpointDocument] = []

    def fails_once(self: Checkpoints, document: CheckpointDocument) -> str:
        if not refused:
            refused.append(document)
            raise OSError(errno.ENOSPC, "No space left on device")
        return commit(self, document)

    def spoils_once(model: torch.nn.Module, *args: Any, **settings: Any) -> Any:
        calls.append(model)
        if len(calls) == 2:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(1e200)
        return train_step(model, *args, **settings)

    seams.replace(seams.CHECKPOINTS_COMMIT, fails_once)
    seams.replace(seams.STRATEGY_TRAIN_STEP, spoils_once)
    return train_rank(context, job)


def _epochs(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_events(str(folder / "run")) if record["event"] == "epoch"]


@pytest.mark.parametrize("epochs", [1, 2], ids=["the last epoch", "an epoch that others follow"])
@pytest.mark.parametrize("parallel", [{}, {"replicas": [1, 1], "micro_batches": 4}], ids=["whole", "stages"])
def test_ranks_that_are_asked_to_stop_while_they_evaluate_save_and_the_next_ones_evaluate(
        tmp_path: Path, parallel: dict[str, Any], epochs: int) -> None:
    dataset, undisturbed, stopped = tmp_path / "dataset", tmp_path / "undisturbed", tmp_path / "stopped"
    write_dataset(dataset, ([400], [351]))
    run_on_ranks(2, train_rank, _job(dataset, undisturbed, parallel, epochs=epochs))
    summary = run_on_ranks(2, _asked_while_evaluated, _job(dataset, stopped, parallel, epochs=epochs))[0]
    assert (summary["interrupted"], summary["steps"], _epochs(stopped)) == (True, STEPS, [])
    checkpoints = Checkpoints(str(stopped / "run"))
    assert checkpoints.numbers() == [STEPS]
    position = checkpoints.document(STEPS).position
    assert (position.epoch, position.step, position.to_evaluate) == (1, 0, True)
    summary = run_on_ranks(2, train_rank, _job(dataset, stopped, parallel, epochs=epochs, generation=1))[0]
    assert (summary["interrupted"], summary["steps"]) == (False, epochs * STEPS)
    assert largest_difference(weights_of_run(stopped), weights_of_run(undisturbed)) < 1e-10
    for found, expected in zip(_epochs(stopped), _epochs(undisturbed), strict=True):
        assert found["validation"] == pytest.approx(expected["validation"], rel=1e-9)
        assert found["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-9)
        assert [found[key] for key in ("epoch", "rows", "digest")] == [expected[key] for key in ("epoch", "rows", "digest")]
    (stopped / "run/result.json").write_text(json.dumps(summary))
    proved = audit(str(stopped / "run"), dataset_url=str(dataset))
    assert (proved.finished, proved.rows, proved.repeated) == (True, 751, 0)


def test_a_run_that_goes_back_to_where_it_was_to_evaluate_evaluates_again(tmp_path: Path) -> None:
    dataset, folder = tmp_path / "dataset", tmp_path / "back"
    write_dataset(dataset, ([400], [351]))
    job = partial(_job, dataset, folder, {}, epochs=2, on_nonfinite="rollback")
    run_on_ranks(2, _asked_while_evaluated, job())
    summary = run_on_ranks(2, _goes_back_to_it, job(generation=1))[0]
    assert (summary["interrupted"], summary["steps"]) == (False, 2 * STEPS)
    back = [record for record in read_events(str(folder / "run")) if record["event"] == "rollback" and record["rank"] == 0]
    assert [record["steps_done"] for record in back] == [STEPS]  # the control: it did go back there
    assert [epoch["epoch"] for epoch in _epochs(folder)] == [0, 0, 1]
    (folder / "run/result.json").write_text(json.dumps(summary))
    proved = audit(str(folder / "run"), dataset_url=str(dataset))
    assert (proved.finished, proved.epochs, proved.rows) == (True, 2, 751)
