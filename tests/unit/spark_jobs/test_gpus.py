"""Where ranks get their GPUs: which this machine has, and what is asked of Spark or refused. Real sessions are in tests/spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkring.conf.schema import RingConfig, SparkConfig
from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.launch.gpus.source import dealt_gpus, gpus_to_deal, rank_resources
from sparkring.spark_jobs.launch.gpus.visible import listed_gpus, named_gpus, visible_gpus
from sparkring.spark_jobs.spark.session import _new_session
from tests.support.doctor_samples import session
from tests.support.pretended_gpus import TWO, nvidia_smi

LOCAL = {"spark__master": "local[4]"}
CLUSTER = {"spark__master": "spark://here:7077"}
ON_EXECUTORS = CLUSTER | {"spark__executor__resource__gpu__amount": "2"}
BY_SESSION = {"spark__task__resource__gpu__amount": "1"}
ON_DEMAND = {"spark__dynamicAllocation__enabled": "true"}
PARTITIONED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736)
  MIG 3g.20gb     Device  1: (UUID: MIG-a28ad590)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-c6d4f1ef)
"""


def cuda(**settings: Any) -> RingConfig:
    return RingConfig(device="cuda", **settings)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs, and a driver that may use both."""
    monkeypatch.setenv("PATH", str(nvidia_smi(tmp_path, TWO)), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(("value", "gpus"), [
    ("0,1", ("0", "1")), (" 3 , 1 ", ("3", "1")), ("", ()), ("-1", ()), ("0,-1,1", ("0",)), ("NoDevFiles", ()), ("1,1", ("1",)),
    ("GPU-8932f937,MIG-GPU-8932f937/1/0,MIG-c7384736", ("GPU-8932f937", "MIG-GPU-8932f937/1/0", "MIG-c7384736"))])
def test_gpus_are_named_as_cuda_reads_the_variable(value: str, gpus: tuple[str, ...]) -> None:
    assert named_gpus(value) == gpus


@pytest.mark.parametrize(("listing", "gpus"), [
    pytest.param(TWO, ("0", "1"), id="whole ones by number"), pytest.param("No devices found.\n", (), id="none"),
    pytest.param(PARTITIONED, ("MIG-c7384736", "GPU-c6d4f1ef"), id="one part of each by name")])
def test_gpus_are_listed_as_nvidia_smi_lists_them(listing: str, gpus: tuple[str, ...]) -> None:
    assert listed_gpus(listing) == gpus


@pytest.mark.usefixtures("two_gpus")
def test_the_driver_s_own_choice_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert visible_gpus() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible_gpus() == ("1",)


def test_a_machine_without_the_program_has_none_and_one_whose_driver_is_broken_is_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == ()
    monkeypatch.setenv("PATH", f"{nvidia_smi(tmp_path, 'NVIDIA-SMI has failed.', code=9)}:/usr/bin:/bin")
    with pytest.raises(EnvironmentProblem, match=r"ended with code 9: NVIDIA-SMI has failed; repair the NVIDIA driver, or name the GPUs"):
        visible_gpus()
    with pytest.raises(EnvironmentProblem, match="NVIDIA-SMI has failed"):
        gpus_to_deal(session(**LOCAL), cuda(), num_ranks=2)
    assert gpus_to_deal(session(**LOCAL), cuda(allow_cpu_fallback=True), num_ranks=2) == ()


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_dealt_out_on_a_local_master_only() -> None:
    assert gpus_to_deal(session(**LOCAL), cuda(), num_ranks=2) == ("0", "1")
    assert gpus_to_deal(session(**LOCAL), cuda(), num_ranks=1) == ("0", "1")
    assert gpus_to_deal(session(spark__master="local[*, 4]"), cuda(), num_ranks=2) == ("0", "1")  # Databricks' single node
    assert gpus_to_deal(session(**LOCAL), RingConfig(), num_ranks=9) is None
    assert gpus_to_deal(session(**CLUSTER), cuda(), num_ranks=9) is None
    assert gpus_to_deal(session(spark__master="local-cluster[1,4,1024]"), cuda(), num_ranks=9) is None


@pytest.mark.usefixtures("two_gpus")
def test_more_ranks_than_gpus_are_refused_unless_they_may_use_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentProblem, match=r"2 GPUs \(0, 1\) in .* for 3 rank\(s\).*; set train.num_ranks=2, or train.ring.allow"):
        gpus_to_deal(session(**LOCAL), cuda(), num_ranks=3)
    assert gpus_to_deal(session(**LOCAL), cuda(allow_cpu_fallback=True), num_ranks=3) == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(EnvironmentProblem, match=r"no GPUs in CUDA_VISIBLE_DEVICES .*; set CUDA_VISIBLE_DEVICES if the driver hides some"):
        gpus_to_deal(session(**LOCAL), cuda(), num_ranks=1)


@pytest.mark.usefixtures("two_gpus")
def test_rings_at_once_have_gpus_of_their_own() -> None:
    with dealt_gpus(session(**LOCAL), cuda(), num_ranks=1) as first:
        with dealt_gpus(session(**LOCAL), cuda(), num_ranks=1) as second:
            assert (first, second) == (("0",), ("1",))
            with (pytest.raises(EnvironmentProblem, match=r"of 2 GPUs \(0, 1\) in .* other rings of this driver leave 0 for 1 rank"),
                  dealt_gpus(session(**LOCAL), cuda(), num_ranks=1)):
                pass
            with dealt_gpus(session(**LOCAL), cuda(allow_cpu_fallback=True), num_ranks=1) as third, \
                    dealt_gpus(session(**LOCAL), RingConfig(), num_ranks=1) as on_cpus:
                assert (third, on_cpus) == ((), None)
        with dealt_gpus(session(**LOCAL), cuda(), num_ranks=1) as fourth:
            assert fourth == second, "it is free again"
    with dealt_gpus(session(**LOCAL), cuda(), num_ranks=2) as both:
        assert both == ("0", "1")


@pytest.mark.usefixtures("two_gpus")
def test_amounts_that_no_local_task_could_ever_get_are_refused() -> None:
    with pytest.raises(EnvironmentProblem, match=r"spark.task.resource.gpu.amount is set, and Spark assigns no GPUs .*; unset it"):
        gpus_to_deal(session(**LOCAL, **BY_SESSION), cuda(), num_ranks=1)
    with pytest.raises(EnvironmentProblem, match=r"Spark assigns no GPUs on the master local\[2\]; unset it"):
        _new_session(SparkConfig(master="local[2]", conf={"spark.task.resource.gpu.amount": "1"}), "tests")


@pytest.mark.parametrize(("settings", "config", "words"), [
    pytest.param(CLUSTER, cuda(), "executors have no GPU; set spark.executor.resource.gpu.amount", id="no GPUs"),
    pytest.param(ON_EXECUTORS | ON_DEMAND, cuda(), "would start other executors .*; set that to false, or set spark.task.resource.gpu",
                 id="dynamic allocation"),
    pytest.param(ON_EXECUTORS, cuda(launcher="horovod.spark"), "launcher horovod.spark cannot ask for any; use launcher: barrier",
                 id="upstream's launcher")])
def test_where_a_stage_cannot_ask_for_gpus_the_session_s_amounts_hold_or_ranks_are_refused(
        settings: dict[str, str], config: RingConfig, words: str) -> None:
    with pytest.raises(EnvironmentProblem, match=words):
        rank_resources(session(**settings), config)
    assert rank_resources(session(**settings, **BY_SESSION), config) is None
    assert rank_resources(session(**settings), config.changed(allow_cpu_fallback=True)) is None
    assert rank_resources(session(**settings), RingConfig()) is None


def test_on_a_local_master_nothing_is_asked_of_spark() -> None:
    assert rank_resources(session(**LOCAL), cuda()) is None
