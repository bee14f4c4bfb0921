"""An executor that Spark is told will go: the ranks save, and the run goes on with what is left; no step is done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.datasets import write_dataset
from sparkring.conf.schema import Config
from sparkring.spark_jobs.stored.audit import audit
from tests.support.spark_cluster import standalone
from tests.support.training import await_condition, events_of, train_config

STEPS = 201
"""Of an epoch."""
EPOCHS = 12

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two workers of one slot each."""
    with standalone(tmp_path_factory.mktemp("cluster"), gpus=("0", "1")) as address:
        yield address


def _config(workspace: Path, *, shrink: bool) -> Config:
    write_dataset(workspace / "dataset", ([600, 600], [300], [501]))
    return train_config(workspace, model={"hidden": [16]}, train={
        "epochs": EPOCHS, "batch_rows": 10, "precision": "float64", "checkpoint_steps": 10_000, "lanes": 24, "num_ranks": 2,
        "recovery": {"wait_for_slots_s": 0.0, "shrink": shrink}, "ring": {"start_timeout_s": 60.0}})


@pytest.mark.parametrize("shrink", [True, pytest.param(False, id="the control: Spark alone lets them run on")])
def test_what_a_decommissioned_executor_s_ranks_have_done_is_not_done_again(master: str, tmp_path: Path, *, shrink: bool) -> None:
    config = _config(tmp_path, shrink=shrink)
    path = tmp_path / "config.yaml"
    path.write_text(config.model_dump_json(), encoding="utf-8")  # JSON is YAML
    sizes = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.decommission.enabled": "true",
             "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    command = [sys.executable, "-m", "sparkring", "train", str(path), "--set", f"spark.master={master}"]
    command += [part for key, value in sizes.items() for part in ("--set", f"spark.conf.{key}={value}")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        await_condition(lambda: process.poll() is not None or [one for one in events_of(config, "step") if one["rank"] == 1],
                        "a step of rank 1", within_s=180)
        assert process.poll() is None, process.communicate()[0]
        rank = next(one["pid"] for one in events_of(config, "start") if one["rank"] == 1)
        executor = next(parent for parent in psutil.Process(rank).parents() if parent.name() == "java")
        executor.send_signal(signal.SIGPWR)  # which Spark takes for that request
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    sizes_of = {one["generation"]: one["size"] for one in events_of(config, "start")}
    if shrink:
        assert (sizes_of[0], sizes_of[1]) == (2, 1), output
        assert "there are 1 slots for 2 ranks; continuing with 1" in output
    else:  # Spark ends the executor once its rank is done; if it does so before the other rank is, the ring begins again, to find all done
        assert {one["generation"] for one in events_of(config, "step")} == {0}, output
        assert set(sizes_of.values()) == {2}, output
    done = Counter((one["epoch"], one["step"]) for one in events_of(config, "step") if one["rank"] == 0)
    assert (len(done), set(done.values())) == (EPOCHS * STEPS, {1})
    assert audit(config.run_url).finished
