"""``run_ring`` on GPUs that are not there: which rank gets which, on a machine of its own and on a cluster whose Spark assigns them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from tests.support import ring_functions
from tests.support.pretended_gpus import TWO, discovery_script, nvidia_smi
from tests.support.ring_driver import Driver, driver, marks, wait_until

MASTER = "local-cluster[1,4,1024]"
"""One executor, a process of its own, with four cores."""
GIVEN = {"device": "cuda", "allow_cpu_fallback": True}
"""Ranks end up on the CPU, since no such GPU is there, and tell which they were given."""


def with_two_gpus(folder: Path) -> dict[str, str]:
    """Properties of a session whose executor has two GPUs, and which soon refuses a stage that does not fit."""
    check = "spark.scheduler.barrier.maxConcurrentTasksCheck"
    return {f"{check}.interval": "1s", f"{check}.maxFailures": "1",
            "spark.executor.memory": "512m", "spark.executor.cores": "4", "spark.executor.resource.gpu.amount": "2",
            "spark.worker.resource.gpu.amount": "2",
            "spark.worker.resource.gpu.discoveryScript": str(discovery_script(folder, ["0", "1"]))}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A local master, where Spark assigns no GPUs, on a machine with two."""
    folder = tmp_path_factory.mktemp("machine")
    with patch.dict(os.environ):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        path = {"PATH": f"{nvidia_smi(folder, TWO)}:{os.environ['PATH']}"}
        with driver(folder, {"master": "local[3]"}, environment=path) as running:
            yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("cluster")
    with driver(folder, {"master": MASTER, **with_two_gpus(folder)}) as running:
        yield running


def stage(running: Driver, into: Path, *, num_tasks: int, profiled: bool = False) -> dict[str, Any]:
    """What came of a stage whose tasks need to run all at once."""
    running.tell({"do": "stage", "num_tasks": num_tasks, "profiled": profiled, "into": str(into)})
    wait_until(into.exists, f"a stage of {num_tasks} tasks to end")
    told: dict[str, Any] = json.loads(into.read_text(encoding="utf-8"))
    return told


@pytest.mark.parametrize("launcher", ["barrier", pytest.param("horovod.spark", marks=pytest.mark.nightly)])
def test_the_gpus_of_a_machine_are_dealt_out_to_its_ranks(machine: Driver, tmp_path: Path, launcher: str) -> None:
    ranks = machine.ring(ring_functions.introduce, str(tmp_path), num_ranks=2, launcher=launcher, **GIVEN).results
    assert [(told["rank"], told["gpu"], told["device"]) for told in ranks] == [(0, "0", "cpu"), (1, "1", "cpu")]
    refused = machine.ring(ring_functions.introduce, str(tmp_path), num_ranks=2, launcher=launcher, device="cuda")
    assert refused.error.startswith("EnvironmentProblem")
    assert "a rank has no usable GPU: " in refused.message


def test_more_ranks_than_a_machine_has_gpus_are_refused_before_they_start(machine: Driver, tmp_path: Path) -> None:
    outcome = machine.ring(ring_functions.sleep, str(tmp_path), num_ranks=3, device="cuda")
    assert outcome.error.startswith("EnvironmentProblem")
    assert "this machine has 2 GPUs (0, 1) in CUDA_VISIBLE_DEVICES or nvidia-smi -L for 3 rank(s)" in outcome.message
    assert not list(tmp_path.glob("rank-*"))
    ranks = machine.ring(ring_functions.introduce, str(tmp_path), num_ranks=3, **GIVEN).results
    assert [(told["gpu"], told["device"]) for told in ranks] == [("0", "cpu"), ("1", "cpu"), ("", "cpu")]


@pytest.mark.nightly  # how it is read is in test_gpus.py
def test_the_driver_s_choice_of_gpus_is_dealt_out_as_it_is_written(machine: Driver, tmp_path: Path) -> None:
    machine.tell({"do": "environment", "set": {"CUDA_VISIBLE_DEVICES": "MIG-GPU-5d5ba0d6/1/0, GPU-c6d4,7"}})
    ranks = machine.ring(ring_functions.introduce, str(tmp_path), num_ranks=2, **GIVEN).results
    assert [told["gpu"] for told in ranks] == ["MIG-GPU-5d5ba0d6/1/0", "GPU-c6d4"]


def test_ranks_get_a_gpu_each_and_the_stages_beside_them_every_core(cluster: Driver, tmp_path: Path) -> None:
    ranks = cluster.ring(ring_functions.introduce, str(tmp_path), num_ranks=2, **GIVEN).results
    assert sorted(told["gpu"] for told in ranks) == ["0", "1"]
    assert len({psutil.Process(told["task"]).ppid() for told in ranks}) == 1, "both are on the one executor"
    assert stage(cluster, tmp_path / "alone", num_tasks=4) == {"gpus": [""] * 4, "error": ""}
    cluster.begin(ring_functions.sleep, str(tmp_path), num_ranks=2, **GIVEN)
    marks(tmp_path, num_ranks=2)
    assert stage(cluster, tmp_path / "beside", num_tasks=2) == {"gpus": ["", ""], "error": ""}, "on the two cores that are left"
    cluster.tell({"do": "cancel"})
    assert cluster.outcome().error


@pytest.mark.nightly
def test_control_tasks_that_each_take_a_gpu_do_not_get_every_core(cluster: Driver, tmp_path: Path) -> None:
    assert "requires more slots" in stage(cluster, tmp_path / "profiled", num_tasks=4, profiled=True)["error"]


@pytest.mark.nightly
def test_control_with_amounts_of_the_session_tasks_without_use_for_a_gpu_take_one_too(tmp_path: Path) -> None:
    with driver(tmp_path, {"master": MASTER, **with_two_gpus(tmp_path), "spark.task.resource.gpu.amount": "1"}) as running:
        two, four = (stage(running, tmp_path / str(count), num_tasks=count) for count in (2, 4))
    assert sorted(two["gpus"]) == ["0", "1"]
    assert "requires more slots" in four["error"]


@pytest.mark.parametrize(("num_ranks", "threads", "slots"), [
    pytest.param(3, 1, 2, id="two GPUs"), pytest.param(2, 3, 1, id="four cores")])
def test_slots_are_counted_in_gpus_and_in_the_cores_of_a_rank(cluster: Driver, num_ranks: int, threads: int, slots: int) -> None:
    outcome = cluster.ring(ring_functions.raise_on_rank_1, num_ranks=num_ranks, threads_per_rank=threads, start_timeout_s=1, **GIVEN)
    assert outcome.error.startswith("NotEnoughSlots")
    assert (outcome.attributes["wanted"], outcome.attributes["slots"]) == (num_ranks, slots)
    assert f"GPUs (a rank takes 1, and {threads} core(s))" in outcome.message


def test_more_cores_than_an_executor_has_are_refused_each_time(cluster: Driver) -> None:
    for _ in range(2):  # Spark keeps a profile that it has refused
        outcome = cluster.ring(ring_functions.raise_on_rank_1, num_ranks=1, threads_per_rank=5, device="cuda")
        assert outcome.error.startswith("EnvironmentProblem")
        assert "Spark cannot give a task a GPU and 5 core(s)" in outcome.message


def test_the_way_of_spark_3_5_to_a_profile_comes_to_the_same(cluster: Driver, tmp_path: Path) -> None:
    told = stage(cluster, tmp_path / "profiled", num_tasks=2, profiled=True)
    assert (sorted(told["gpus"]), told["error"]) == (["0", "1"], "")


@pytest.mark.nightly
def test_ranks_get_a_gpu_each_over_spark_connect(tmp_path: Path) -> None:
    with driver(tmp_path, {"remote": MASTER, **with_two_gpus(tmp_path)}, environment={"SPARK_TESTING": "1"}) as running:
        ranks = running.ring(ring_functions.introduce, str(tmp_path), num_ranks=2, **GIVEN).results
        assert sorted(told["gpu"] for told in ranks) == ["0", "1"]
        assert stage(running, tmp_path / "alone", num_tasks=4) == {"gpus": [""] * 4, "error": ""}
