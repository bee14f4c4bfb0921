"""The main job on a standalone Spark master with two worker processes: executors are other processes than the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkring.pipelines.training.events import read_events
from tests.support.spark_cluster import standalone

pytestmark = pytest.mark.timeout(900)


def test_the_main_job_runs_on_separate_worker_processes(tmp_path: Path) -> None:
    with standalone(tmp_path, gpus=("0", "1")) as master:
        settings = {"spark.master": master, "train.epochs": 1, "spark.conf.spark.executor.memory": "900m",
                    "spark.conf.spark.driver.host": "127.0.0.1", "spark.conf.spark.driver.bindAddress": "127.0.0.1"}
        overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "sparkring", "demo", "local/flights", *overrides]
        ended = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True,
                               timeout=800, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    workspace = tmp_path / "runs" / "flights"
    events = list(read_events(str(workspace / "run")))
    assert [(record["rank"], record["size"], record["reduction"]) for record in events if record["event"] == "start"] == [
        (0, 2, "shared memory"), (1, 2, "shared memory")]
    assert [record["exact"] for record in events if record["event"] == "epoch"] == [True]
    evaluation = json.loads((workspace / "run" / "evaluation.json").read_text(encoding="utf-8"))
    assert evaluation["network"]["auc"] > evaluation["base_rate"]["auc"]
    assert (workspace / "report.html").stat().st_size > 10_000
