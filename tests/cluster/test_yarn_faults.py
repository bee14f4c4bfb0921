"""What befalls a job on a real YARN: nodes, disks and storage go away, somebody kills it; each time it comes to a proved end.

And a job whose Python comes from an archive. A minute or two each, so they run with the nightly tests. Where a job only trains, it
does so on a dataset that all of these share.
"""

from __future__ import annotations

import json
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.submission.pack import pack
from tests.support.hadoop import Hdfs
from tests.support.yarn import EXECUTOR, Yarn, processes_of
from tests.support.yarn_jobs import Job

pytest_plugins = ["tests.support.places", "tests.support.yarn_places"]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

TRAIN = ("--job", "train")
SECOND = 1
STOPPED_S = 20.0
LARGE_MB = 20
"""From this size on, what is installed is linked rather than packed in a test."""


@contextmanager
def running(job: Job, *options: str) -> Iterator[Job]:
    """The job, submitted; whatever happens in the block, nothing of it stays here."""
    try:
        job.submit(*options)
        yield job
    finally:
        job.close()


@contextmanager
def second_node_without_the_master(cluster: Yarn, job: Job, *, small_disk: bool = False) -> Iterator[None]:
    """The job with its application master and one executor on the first node, and the other executor on the second."""
    cluster.stop_node(SECOND)
    try:
        with running(job, *TRAIN):
            job.until(lambda: processes_of(job.application), "an application master")
            cluster.start_node(SECOND, small_disk=small_disk)
            yield
    finally:
        cluster.restart_node(SECOND)


def test_a_job_with_its_driver_here_is_ended_by_sigterm_goes_on_and_survives_the_loss_of_a_container(
        cluster: Yarn, hadoop: Hdfs, flights: str, python: Path, tmp_path: Path) -> None:
    job = Job(cluster, hadoop, tmp_path, sources=flights, python=python, dataset="of-a-driver-here")
    try:
        job.submit()
        job.checkpoint_of(0)
        first = job.application
        job.terminate()
        assert job.ended() == 143, job.log[-5000:]
        assert "the same command resumes from there" in job.log
        job.nothing_left(first)

        job.submit()
        job.checkpoint_of(1)
        processes_of(job.application, EXECUTOR)[0].kill()
        job.done()
    finally:
        job.close()
    assert job.application != first
    assert job.generations().keys() >= {0, 1, 2}, "ended by SIGTERM, by the loss of a container, by being done; or by growing back"
    job.proved()
    assert Dataset(job.config.dataset).versions() == [1], "the second application finds what the first one prepared"
    assert json.loads((Path(job.config.run_url) / "evaluation.json").read_text(encoding="utf-8"))["network"]["auc"] > 0.5
    assert list(Path(job.config.scores).rglob("*.parquet"))
    assert {cluster.queues()[name].rpartition(".")[2] for name in (first, job.application)} == {"training"}


def test_a_job_survives_the_loss_of_a_node_and_shrinks_meanwhile(cluster: Yarn, hadoop: Hdfs, prepared: str, tmp_path: Path) -> None:
    job = Job(cluster, hadoop, tmp_path, sources=prepared, python=Path(sys.executable))
    with second_node_without_the_master(cluster, job):
        job.checkpoint_of(0)
        cluster.kill_node(SECOND)
        job.done()
    assert list(job.generations().values())[:2] == [2, 1]
    job.proved()


def test_a_job_survives_a_full_disk_on_a_node(cluster: Yarn, hadoop: Hdfs, prepared: str, tmp_path: Path) -> None:
    job = Job(cluster, hadoop, tmp_path, sources=prepared, python=Path(sys.executable))
    unhealthy = cluster.nodes_lost("UNHEALTHY")
    with second_node_without_the_master(cluster, job, small_disk=True):
        job.checkpoint_of(0)
        cluster.fill_disk(SECOND)
        job.done()
    assert cluster.nodes_lost("UNHEALTHY") == unhealthy + 1, "YARN takes such a node out, and its containers with it"
    assert list(job.generations().values())[:2] == [2, 1]
    job.proved()


def test_a_job_waits_for_a_data_node_that_stops_for_a_while(cluster: Yarn, hadoop: Hdfs, prepared: str, tmp_path: Path) -> None:
    job = Job(cluster, hadoop, tmp_path, sources=prepared, python=Path(sys.executable), workspace=f"{hadoop.url}/runs/waits")
    data_node = hadoop.data_node.process
    with running(job, *TRAIN):
        job.checkpoint_of(0)
        data_node.send_signal(signal.SIGSTOP)
        try:
            threading.Event().wait(STOPPED_S)  # the time itself is what is tested
            assert job.running, "its checkpoints and its rows wait there"
        finally:
            data_node.send_signal(signal.SIGCONT)
        job.done()
    assert job.generations() == {0: 2}, "nobody gave up meanwhile"
    job.proved()


def test_a_job_that_is_killed_by_yarn_goes_on_by_the_same_command(cluster: Yarn, hadoop: Hdfs, prepared: str, tmp_path: Path) -> None:
    job = Job(cluster, hadoop, tmp_path, sources=prepared, python=Path(sys.executable), conf={"spark.submit.deployMode": "cluster"})
    with running(job, *TRAIN):
        job.checkpoint_of(0)
        killed = job.application
        cluster.kill_application(killed)
        assert job.ended() != 0
        job.nothing_left(killed)
    with running(job, *TRAIN):
        job.done()
    assert job.application != killed
    assert len(job.generations()) >= 2
    assert not job.proved().repeated, "its ranks saved before they ended"


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_job_runs_on_a_python_that_comes_from_an_archive(cluster: Yarn, hadoop: Hdfs, prepared: str, tmp_path: Path,
                                                           deploy_mode: str) -> None:
    archive = pack(tmp_path / "environment.tar", linked=_large())
    conf = {"spark.submit.deployMode": deploy_mode, "spark.yarn.dist.archives": f"{archive}#environment"}
    if deploy_mode == "client":
        conf["spark.pyspark.driver.python"] = sys.executable
    job = Job(cluster, hadoop, tmp_path / "job", sources=prepared, python=Path("environment/bin/python"), conf=conf)
    with running(job, *TRAIN):
        (pid, *_) = job.until(lambda: [record["pid"] for record in job.events("start")], "a rank")
        program = Path(psutil.Process(pid).exe())
        job.done()
    assert (program.parts[-2], "filecache" in program.parts) == ("bin", True), program
    job.proved()


def _large() -> set[str]:
    """What all of this would be about otherwise: gigabytes of torch and of NVIDIA's libraries, packed, uploaded, unpacked twice."""
    return {entry.name for entry in Path(sysconfig.get_path("purelib")).iterdir()
            if sum(file.stat().st_size for file in ([entry] if entry.is_file() else entry.rglob("*")) if file.is_file()) > LARGE_MB << 20}
