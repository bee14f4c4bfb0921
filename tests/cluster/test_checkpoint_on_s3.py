"""A bucket that refuses the parts of a checkpoint: training goes on, the one before stays, the next one is tried."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import boto3
import pytest

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.stored.audit import audit
from tests.support.s3_server import Flaw, s3_server
from tests.support.training import begin_checkpoints_on_the_dot, train_config

FILES = ([150, 150], [70], [301], [100])
pytestmark = pytest.mark.timeout(180)


def _train(context: RankContext, job: dict[str, Any], environment: dict[str, str]) -> dict[str, Any] | None:
    os.environ.update(environment)
    begin_checkpoints_on_the_dot()
    return train_rank(context, job)


@pytest.mark.parametrize(("flaw", "committed"), [("none", [4, 8, 12, 13]), ("refused part", [4, 12, 13])],
                         ids=["the control: it takes all", "it refuses the parts of one"])
def test_a_part_that_s3_refuses_costs_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaw: Flaw,
                                                     committed: list[int]) -> None:
    write_dataset(tmp_path / "dataset", FILES)
    config = train_config(tmp_path, model={"hidden": [16]}, train={
        "epochs": 1, "batch_rows": 64, "checkpoint_steps": 4, "num_ranks": 2, "keep_checkpoints": 10})
    job = TrainJob(config=config, dataset_url=str(tmp_path / "dataset"), dataset_version=1, run_url="s3://bucket/run", generation=0,
                   lanes=24)
    with s3_server(tmp_path, flaw=flaw) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        summary = run_on_ranks(2, _train, job.model_dump(mode="json"), environment)[0]
        checkpoints = Checkpoints(job.run_url)
        assert checkpoints.numbers() == committed
        assert checkpoints.latest()[1] == []
        warned = [record for record in read_events(job.run_url) if record["event"] == "warning"]
        assert [record["count"] for record in warned] == ([] if flaw == "none" else [1])
        assert all("the checkpoint after 8 steps was not written" in record["text"] and "rank 0: StorageError" in record["text"]
                   and "rank 1: StorageError" in record["text"] for record in warned)
        assert summary["failed_checkpoints"] == len(warned)
        assert audit(job.run_url).epochs == 1
