"""``run_ring`` on a standalone master with two worker processes, each of which claims a GPU that is not there, for two tasks at once."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import ring_functions
from tests.support.ring_driver import Driver, assert_no_process_left, driver, marks
from tests.support.spark_cluster import standalone

GPUS = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "0.5"}
SIZES = {
    "spark.executor.memory": "512m", "spark.cores.max": "4", "spark.executor.cores": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1"}  # Spark deals tasks out in turn: two run on two executors, once both are there


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("cluster")
    with standalone(folder, gpus=("3", "5"), cores=2) as master, driver(folder, {"master": master, **SIZES, **GPUS}) as running:
        yield running


def test_ranks_of_two_executors_ring_and_have_the_gpu_that_spark_gave_them(cluster: Driver, tmp_path: Path) -> None:
    ranks = cluster.ring(ring_functions.introduce, str(tmp_path), num_ranks=2, device="cuda", allow_cpu_fallback=True).results
    assert [(told["rank"], told["hosts"], told["horovod"], told["sum"]) for told in ranks] == [
        (rank, [0, 0], [rank, 2, rank], 21.0) for rank in range(2)]
    assert sorted(told["gpu"] for told in ranks) == ["3", "5"]
    assert [told["device"] for told in ranks] == ["cpu", "cpu"]  # since no such GPU is there, and the config lets them
    assert {address for told in ranks for address in told["listening"]} == {"127.0.0.1"}
    assert len({psutil.Process(told["task"]).ppid() for told in ranks}) == 2  # Spark's Python daemons: one an executor
    assert_no_process_left(ranks[0]["token"])


def test_a_gpu_that_does_not_work_is_refused_without_leave_to_fall_back(cluster: Driver, tmp_path: Path) -> None:
    outcome = cluster.ring(ring_functions.introduce, str(tmp_path), num_ranks=2, device="cuda")
    assert outcome.error.startswith("EnvironmentProblem")
    assert "device is cuda, but a rank has no usable GPU: GPU " in outcome.message
    assert "allow_cpu_fallback=true" in outcome.message


def test_two_ranks_on_one_gpu_are_refused_before_they_ring(cluster: Driver, tmp_path: Path) -> None:
    """By upstream's launcher, for which the session's amounts hold: half a GPU for each task."""
    outcome = cluster.ring(ring_functions.introduce, str(tmp_path), num_ranks=3, device="cuda", allow_cpu_fallback=True,
                           launcher="horovod.spark")
    assert outcome.error.startswith("EnvironmentProblem")
    assert re.search(r"Spark assigned GPU [35] on \S+ to 2 ranks, and NCCL needs one for each", outcome.message)


def test_more_ranks_than_slots_are_refused_once_no_executor_may_come_any_more(cluster: Driver, tmp_path: Path) -> None:
    outcome = cluster.ring(ring_functions.introduce, str(tmp_path), num_ranks=5, start_timeout_s=2)
    assert outcome.error.startswith("NotEnoughSlots")
    assert (outcome.attributes["wanted"], outcome.attributes["slots"]) == (5, 4)
    assert outcome.seconds > 2


def test_an_executor_that_is_lost_ends_the_ring_in_spark_s_own_words(cluster: Driver, tmp_path: Path) -> None:
    cluster.begin(ring_functions.sleep, str(tmp_path), num_ranks=2)
    before = marks(tmp_path, num_ranks=2)
    executor = next(parent for parent in psutil.Process(before[1]["task"]).parents() if parent.name() == "java")
    os.kill(executor.pid, signal.SIGKILL)
    outcome = cluster.outcome()
    assert outcome.error.startswith("ExecutorLost RingError")
    assert outcome.attributes == {"host": "127.0.0.1"}
    assert "Spark ended the ring" in outcome.message
    assert "xecutor" in outcome.message
    assert_no_process_left(before[0]["token"])
    assert marks(tmp_path, num_ranks=2) == before
