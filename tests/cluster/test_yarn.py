"""The main job as an application of a real YARN, by ``sparkring submit``; more of that is in test_yarn_faults.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.retraining.history import History
from tests.support.hadoop import Hdfs
from tests.support.yarn import MASTER, Yarn, processes_of
from tests.support.yarn_jobs import Job

pytest_plugins = ["tests.support.places", "tests.support.yarn_places"]
pytestmark = pytest.mark.timeout(1200)


def test_training_in_the_cluster_survives_the_loss_of_the_application_master(
        cluster: Yarn, hadoop: Hdfs, python: Path, wheel: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "small", ([600, 600], [300], [501]))
    remote = open_store(f"{hadoop.url}/datasets/small")
    for file in (path for path in (tmp_path / "small").rglob("*") if path.is_file()):
        remote.put(file.relative_to(tmp_path / "small").as_posix(), file.read_bytes())
    job = _in_the_cluster(cluster, hadoop, tmp_path, sources=f"{hadoop.url}/none are read", python=python, dataset="small", epochs=20)
    _lose_the_application_master(job, "--job", "train", "--package", str(wheel))
    job.proved()


@pytest.mark.nightly
def test_a_job_with_its_driver_in_the_cluster_keeps_all_in_hdfs_and_survives_the_loss_of_the_application_master(
        cluster: Yarn, hadoop: Hdfs, flights: str, python: Path, wheel: Path, tmp_path: Path) -> None:
    job = _in_the_cluster(cluster, hadoop, tmp_path, sources=flights, python=python, dataset="demo", epochs=4)
    _lose_the_application_master(job, "--package", str(wheel))
    assert cluster.queues()[job.application].rpartition(".")[2] == "training"
    job.proved()
    run = open_store(job.config.run_url)
    assert json.loads(run.read("evaluation.json"))["network"]["auc"] > 0.5
    assert any(entry.name.endswith(".parquet") for entry in run.tree("scores"))
    assert run.size("report.html")


@pytest.mark.nightly
def test_a_schedule_retrains_in_cluster_mode_and_the_next_night_in_client_mode(
        cluster: Yarn, hadoop: Hdfs, flights: str, python: Path, wheel: Path, tmp_path: Path) -> None:
    header, *lines = open_store(flights).read("flights.csv").decode().splitlines(keepends=True)
    nights = open_store(f"{hadoop.url}/nights")
    job = _in_the_cluster(cluster, hadoop, tmp_path, sources=flights, python=python, dataset="nights", epochs=1)
    options = ["--job", "retrain", "--package", str(wheel), *(part for setting in (
        "run=null", f"prepare.sources.flights.path={nights.url}/flights", "prepare.split.validation=4d", "prepare.split.test=4d",
    ) for part in ("--set", setting))]
    for number, (days, mode) in enumerate(((range(1, 26), "cluster"), (range(26, 32), "client")), start=1):
        new = [line for line in lines if int(line.split(",")[2]) in days]
        nights.put(f"flights/{number}.csv", (header + "".join(new)).encode())
        job.submit(*options, "--set", f"spark.conf.spark.submit.deployMode={mode}")
        job.done()
        job.close()
    first, second = History(job.config.workspace).ended()
    assert (first.outcome, first.dataset_version, second.dataset_version, second.champion) == ("promoted", 1, 2, 1)
    assert second.rows > first.rows


def _in_the_cluster(cluster: Yarn, hadoop: Hdfs, folder: Path, *, dataset: str, **settings: Any) -> Job:
    """A job with its driver in the cluster and its workspace in HDFS."""
    return Job(cluster, hadoop, folder, dataset=dataset, workspace=f"{hadoop.url}/runs/{dataset}",
               conf={"spark.submit.deployMode": "cluster", "spark.yarn.maxAppAttempts": "2"}, **settings)


def _lose_the_application_master(job: Job, *options: str) -> None:
    """Run the job, kill its application master after a checkpoint, and wait for the good end of the second attempt."""
    try:
        job.submit(*options)
        job.checkpoint_of(0)
        (master,) = processes_of(job.application, MASTER)
        master.kill()
        job.done()
    finally:
        job.close()
    job.nothing_left(job.application)
    assert len(job.generations()) >= 2, "the second attempt resumed"
