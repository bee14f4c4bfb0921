"""A run whose executors Spark brings on demand (dynamic allocation): it goes on with fewer ranks when a machine is gone for good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.datasets import write_dataset
from sparkring.spark_jobs.stored.audit import audit
from tests.spark.test_ring_on_demand import ON_DEMAND
from tests.support.spark_cluster import standalone
from tests.support.training import await_condition, events_of, train_config

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("cluster"), gpus=("0", "1")) as address:
        yield address


def test_a_run_on_demand_goes_on_with_the_executors_that_come_when_a_machine_is_lost(master: str, tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", ([600, 600], [300], [501]))
    config = train_config(tmp_path, model={"hidden": [16]}, train={
        "epochs": 12, "batch_rows": 10, "precision": "float64", "checkpoint_steps": 50, "lanes": 24, "num_ranks": 2,
        "recovery": {"wait_for_slots_s": 0.0}, "ring": {"start_timeout_s": 80.0}})
    path = tmp_path / "config.yaml"
    path.write_text(config.model_dump_json(), encoding="utf-8")  # JSON is YAML
    settings = {**ON_DEMAND, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    command = [sys.executable, "-m", "sparkring", "train", str(path), "--set", f"spark.master={master}"]
    command += [part for key, value in settings.items() for part in ("--set", f"spark.conf.{key}={value}")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        await_condition(lambda: process.poll() is not None or [one for one in events_of(config, "step") if one["rank"] == 1],
                        "a step of rank 1", within_s=180)
        assert process.poll() is None, process.communicate()[0]
        rank = next(one["pid"] for one in events_of(config, "start") if one["rank"] == 1)
        executor, worker = [parent for parent in psutil.Process(rank).parents() if parent.name() == "java"][:2]
        for machine in (worker, executor):
            machine.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=350)
    assert process.returncode == 0, output
    sizes = {one["generation"]: one["size"] for one in events_of(config, "start")}
    assert (min(sizes), sizes[min(sizes)], sizes[max(sizes)]) == (0, 2, 1), output
    assert "there are 1 slots for 2 ranks; continuing with 1" in output
    assert audit(config.run_url).finished
