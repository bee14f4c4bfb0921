"""The main job as an application of a real YARN, by ``sparkring submit``; more of that is in test_yarn_faults.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from sparkring.pipelines.data.stores.open import open_store
from tests.support.hadoop import Hdfs
from tests.support.yarn import MASTER, Yarn, processes_of
from tests.support.yarn_jobs import Job

pytest_plugins = ["tests.support.places", "tests.support.yarn_places"]
pytestmark = pytest.mark.timeout(1200)


def test_the_python_of_the_cluster_has_the_libraries_and_no_sparkring(python: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for code, right in (("import pyspark, horovod, torch.version", True), ("import sparkring", False)):
        ended = subprocess.run([python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=False)
        assert (ended.returncode == 0) is right, ended.stderr.decode()[-2000:]


def test_a_job_with_its_driver_in_the_cluster_keeps_all_in_hdfs_and_survives_the_loss_of_the_application_master(
        cluster: Yarn, hadoop: Hdfs, flights: str, python: Path, wheel: Path, tmp_path: Path) -> None:
    job = Job(cluster, hadoop, tmp_path, sources=flights, python=python, workspace=f"{hadoop.url}/runs/demo", dataset="demo",
              conf={"spark.submit.deployMode": "cluster", "spark.yarn.maxAppAttempts": "2"}, epochs=4)
    try:
        job.submit("--package", str(wheel))
        job.checkpoint_of(0)
        (master,) = processes_of(job.application, MASTER)
        master.kill()
        job.done()
    finally:
        job.close()
    job.nothing_left(job.application)
    assert cluster.queues()[job.application].rpartition(".")[2] == "training"
    assert len(job.generations()) >= 2, "the second attempt went on"
    job.proved()
    workspace = open_store(job.config.workspace)
    assert json.loads(open_store(job.config.run).read("evaluation.json"))["network"]["auc"] > 0.5
    assert any(entry.name.endswith(".parquet") for entry in workspace.tree("scores"))
    assert workspace.size("report.html")
