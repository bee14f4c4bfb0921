"""Checkpoints by the clock: after so many seconds all ranks save in the same step, by the clock of rank 0 alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.checkpoints.writer import CheckpointWriter
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from tests.support import seams
from tests.support.training import before_each_step, train_config

pytestmark = pytest.mark.parallel

STEPS = 13
SECONDS = 3.0


def _train(context: RankContext, job: dict[str, Any]) -> None:
    """Train by clocks that go on with the steps: a second each on rank 0, an hour each on rank 1, which nobody asks.

    A step is done once the checkpoint before it is written, so that none is put off.
    """
    seconds = 0

    def act(done: int, writers: Sequence[CheckpointWriter]) -> None:
        nonlocal seconds
        for writer in writers:
            writer.finish()
        seconds = done + 1

    before_each_step(act)
    seams.replace(seams.SIGNALS_TIME, SimpleNamespace(monotonic=lambda: seconds * (1.0 if context.rank == 0 else 3600.0)))
    train_rank(context, job)


@pytest.mark.parametrize(("seconds", "committed"), [
    pytest.param(SECONDS, [4, 8, 12, STEPS], id="every three seconds"),
    pytest.param(None, [STEPS], id="the control: only steps count")])
def test_a_checkpoint_is_written_when_so_much_time_has_passed_since_the_last_one(
        tmp_path: Path, seconds: float | None, committed: list[int]) -> None:
    write_dataset(tmp_path / "dataset", ([150, 150], [70], [301], [100]))
    config = train_config(tmp_path, model={"hidden": [4]}, train={
        "epochs": 1, "batch_rows": 64, "checkpoint_steps": 10_000, "checkpoint_s": seconds, "num_ranks": 2, "keep_checkpoints": 10})
    job = TrainJob(config=config, dataset_url=str(tmp_path / "dataset"), dataset_version=1, run_url=str(tmp_path / "run"), generation=0,
                   lanes=24)
    run_on_ranks(2, _train, job.model_dump(mode="json"))
    assert Checkpoints(job.run_url).numbers() == committed
