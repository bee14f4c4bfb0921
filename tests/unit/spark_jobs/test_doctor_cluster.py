"""What the doctor says of Spark's settings and of what tasks reported. Real sessions are looked at in tests/spark."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparkring.errors import EnvironmentProblem, SparkringError
from sparkring.spark_jobs.diagnosis.check import Check, guarded, verdict
from sparkring.spark_jobs.diagnosis.cluster import (
    check_encryption,
    check_executor_memory,
    check_executors,
    check_gpu,
    check_network,
    check_settings,
    megabytes,
)
from sparkring.spark_jobs.diagnosis.survey import Machine, TaskReport
from sparkring.spark_jobs.launch.meeting.encryption import ENCRYPTING
from tests.support import seams
from tests.support.doctor_samples import PACKAGES, machine, needs, session, task
from tests.support.pretended_gpus import TWO, nvidia_smi

ON_DEMAND = {"spark__master": "spark://here:7077", "spark__dynamicAllocation__enabled": "true"}
CUDA = "train.ring.device=cuda"
GPUS = {"spark__task__resource__gpu__amount": "1"}
TORCH_WITH_GPU = {"torch": PACKAGES["torch"] | {"cuda_devices": 1}}


def test_a_check_that_raises_becomes_a_finding() -> None:
    def broken() -> Check:
        raise KeyError("oops")

    def refused() -> Check:
        raise EnvironmentProblem("found none on PATH, Spark needs Java 17 or 21; install one (apt-get ...); then go on.")

    assert guarded("Java", broken).found == "the check itself failed: KeyError: 'oops'"
    assert guarded("Java", refused) == Check(
        "Java", "fail", "found none on PATH, Spark needs Java 17 or 21", "Install one (apt-get ...); then go on.")


def test_the_worst_of_several_findings_counts_and_equal_advice_is_given_once() -> None:
    check = verdict("disk", [("warn", "a", "Do this."), ("fail", "b", "Do this.")], fine="all well")
    assert check == Check("disk", "fail", "a; b", "Do this.")
    assert verdict("disk", [], fine="all well") == Check("disk", "ok", "all well")


@pytest.mark.parametrize(("settings", "overrides", "status", "said"), [
    pytest.param({}, [], "ok", "no dynamic allocation", id="nothing set"),
    pytest.param(ON_DEMAND, [], "ok", "executors come on demand", id="dynamic allocation"),
    pytest.param(ON_DEMAND | {"spark__speculation": "true"}, [], "fail", "a second task for a rank", id="and two tasks for a rank"),
    pytest.param(ON_DEMAND | {"spark__dynamicAllocation__maxExecutors": "1", "spark__executor__cores": "1"}, ["train.num_ranks=2"],
                 "fail", "maxExecutors=1 has 1", id="and too few executors"),
    pytest.param(ON_DEMAND | {"spark__dynamicAllocation__executorAllocationRatio": "0.5"}, [], "fail", "Ratio is 0.5",
                 id="and half of them"),
    pytest.param({"spark__speculation": "true"}, [], "warn", "speculation", id="speculation"),
    pytest.param({}, ["train.ring.threads_per_rank=4", "spark.master=yarn"], "warn", "spark.task.cpus=1", id="more threads than task.cpus"),
    pytest.param({"spark__task__cpus": "4"}, ["train.ring.threads_per_rank=4", "spark.master=yarn"], "ok", "task.cpus=4", id="as many")])
def test_settings_that_break_a_ring_are_told(settings: dict[str, str], overrides: list[str], status: str, said: str) -> None:
    check = check_settings(session(**settings), needs(*overrides))
    assert check.status == status
    assert said in check.found


def test_a_container_must_hold_its_ranks_beside_the_heap() -> None:
    small = ("spark.master=yarn", "train.num_ranks=2", "train.lanes=24", "prepare.row_group_mb=1")
    job = needs(*small, "train.ring.fork_ranks=false")  # 724 MB a rank
    default = check_settings(session(spark__master="yarn"), job)
    assert (default.status, "403 MB beside" in default.found) == ("warn", True)  # 384 MiB
    assert "spark.executor.memoryOverhead=724m" in default.advice
    assert check_settings(session(spark__master="yarn", spark__executor__memoryOverhead="1g"), job).status == "ok"
    assert check_settings(session(spark__master="yarn", spark__executor__memory="10g"), job).status == "ok"  # a tenth of it
    two = session(spark__master="yarn", spark__executor__memoryOverhead="1g", spark__executor__cores="2")
    assert check_settings(two, job).status == "warn"
    forked = check_settings(session(spark__master="yarn"), needs(*small))
    assert "spark.executor.memoryOverhead=1474m" in forked.advice  # the process that the rank is forked off stays


@pytest.mark.parametrize(("gpus", "status"), [("1", "ok"), ("2", "warn")])
def test_a_container_holds_a_rank_for_each_gpu(monkeypatch: pytest.MonkeyPatch, gpus: str, status: str) -> None:
    monkeypatch.setattr(seams.GPUS_PROFILE_OF, lambda *_: None)
    job = needs("spark.master=yarn", "train.num_ranks=2", "train.lanes=24", "prepare.row_group_mb=1", "train.ring.fork_ranks=false", CUDA)
    settings = {"spark__executor__memoryOverhead": "1g", "spark__executor__cores": "16"}  # 724 MB a rank
    assert check_settings(session(spark__master="yarn", spark__executor__resource__gpu__amount=gpus, **settings), job).status == status


@pytest.mark.parametrize(("text", "unit", "expected"), [
    ("1g", "b", 1073.741824), ("512", "m", 536.870912), ("100K", "b", 0.1024), ("2gb", "b", 2147.483648)])
def test_sizes_as_spark_writes_them(text: str, unit: str, expected: float) -> None:
    assert megabytes(text, unit=unit) == pytest.approx(expected)


def test_a_size_that_is_none_is_named() -> None:
    with pytest.raises(SparkringError, match="'lots' is not a size"):
        megabytes("lots", unit="b")


def test_executors_like_the_driver_are_well() -> None:
    check = check_executors([task(), task(machine(host="beta"))], machine())
    assert (check.status, check.found) == (
        "ok", "2 task(s) on alpha, beta: Python 3.11.7, sparkring 0.1.0, torch 2.13.0, Horovod 0.28.1 with Gloo and NCCL")


@pytest.mark.parametrize(("there", "said"), [
    pytest.param(machine(python="3.9.2"), "Python 3.9.2 on alpha, 3.11.7 here", id="another Python"),
    pytest.param(machine(packages={"sparkring": {"error": "ModuleNotFoundError"}}), "sparkring cannot be imported on alpha",
                 id="no sparkring"),
    pytest.param(machine(packages={"sparkring": {"version": "0.0.9"}}), "sparkring 0.0.9 on alpha, 0.1.0 here", id="another sparkring"),
    pytest.param(machine(packages={"torch": {"version": "2.1.0"}}), "torch 2.1.0 on alpha, 2.13.0 here", id="another torch"),
    pytest.param(machine(packages={"horovod": {"version": "0.28.1", "gloo": False, "nccl": True}}), "without Gloo", id="no Gloo")])
def test_an_executor_unlike_the_driver_fails(there: Machine, said: str) -> None:
    check = check_executors([task(machine(host="beta")), task(there)], machine())
    assert (check.status, said in check.found) == ("fail", True)


@pytest.mark.parametrize(("package", "facts", "found"), [
    ("numpy", {"version": "1.23.5"}, "numpy 1.23.5 on alpha, 1.26.4 here"),
    ("numpy", {"version": "2.1.0"}, "numpy 2.1.0 on alpha, 1.26.4 here (prepare and score may fail)"),
    ("pyarrow", {"version": "15.0.0"}, "pyarrow 15.0.0 on alpha, 14.0.2 here (prepare and score may fail)"),
    ("petastorm", {"error": "ImportError: no"}, "petastorm cannot be imported on alpha: ImportError: no"),
    ("horovod", PACKAGES["horovod"] | {"version": "0.28.0"}, "horovod 0.28.0 on alpha, 0.28.1 here")])
def test_what_a_ring_does_not_refuse_is_a_warning(package: str, facts: dict[str, Any], found: str) -> None:
    check = check_executors([task(machine(packages={package: facts}))], machine())
    assert (check.status, check.found) == ("warn", found)


def test_executors_need_one_build_of_torch_and_the_driver_s_may_be_another() -> None:
    cuda = {"torch": PACKAGES["torch"] | {"version": "2.13.0+cu126"}}
    assert check_executors([task(machine(packages=cuda)), task(machine(host="beta", packages=cuda))], machine()).status == "ok"
    check = check_executors([task(machine(packages=cuda)), task(machine(host="beta"))], machine())
    assert (check.status, check.found) == (
        "fail", "the executor on beta has torch 2.13.0, that on alpha has torch 2.13.0+cu126")


def test_a_patch_release_of_python_may_differ() -> None:
    assert check_executors([task(machine(python="3.11.2"))], machine()).status == "ok"


def test_tasks_that_left_the_packages_to_a_neighbour_are_no_machine_of_their_own() -> None:
    assert check_executors([task(), task(machine(packages={}, python="3.11.7"))], machine()).found.startswith("2 task(s) on alpha:")


def test_executors_that_do_not_see_the_workspace_fail() -> None:
    check = check_executors([task(sees_probe=True), task(machine(host="beta"), sees_probe=False)], machine())
    assert (check.status, check.found) == ("fail", "beta cannot see the workspace's folder of this machine")


def test_memory_is_looked_at_machine_by_machine() -> None:
    job = needs("train.num_ranks=3", "train.lanes=24", "prepare.row_group_mb=1")  # 716 MB a rank
    crowded = [task(machine(free_mb=1400)), task(machine(free_mb=1400)), task(machine(host="beta", free_mb=1400))]
    check = check_executor_memory(crowded, job)
    assert (check.status, "on alpha, 2 rank(s) need about 1,432" in check.found, "beta" in check.found) == ("warn", True, False)


def test_a_task_that_cannot_be_reached_fails_with_the_ports(tmp_path: Path) -> None:
    (tmp_path / "range").write_text("32768\t60999\n", encoding="ascii")
    check = check_network([task(), task(trouble=["alpha cannot reach 10.0.0.2:40001 (timed out)"])], port_range=tmp_path / "range")
    assert (check.status, check.found) == ("fail", "alpha cannot reach 10.0.0.2:40001 (timed out)")
    assert "TCP ports 32768 to 60999" in check.advice


def test_few_ephemeral_ports_are_told(tmp_path: Path) -> None:
    (tmp_path / "range").write_text("60000 60099\n", encoding="ascii")
    assert check_network([task()], port_range=tmp_path / "range").status == "warn"


def test_a_network_that_was_not_tried_is_not_called_well() -> None:
    assert check_network([task(address=None, interface=None)]).status == "warn"


@pytest.mark.parametrize(("settings", "report", "status", "said"), [
    pytest.param({}, task(machine(packages=TORCH_WITH_GPU), gpus=["0"]), "fail", "executors have no GPU", id="executors have none"),
    pytest.param(GPUS, task(machine(packages=TORCH_WITH_GPU)), "fail", "given no GPU", id="a task without one"),
    pytest.param(GPUS, task(gpus=["0"]), "fail", "torch sees no GPU on alpha", id="torch sees none"),
    pytest.param(GPUS, task(machine(packages=TORCH_WITH_GPU), gpus=["0"]), "ok", "1 task(s) with GPU 0, by spark.task.resource.gpu.amount",
                 id="all there")])
def test_gpus_must_be_assigned_and_seen(settings: dict[str, str], report: TaskReport, status: str, said: str) -> None:
    check = check_gpu(session(**settings), [report], needs(CUDA), machine())
    assert (check.status, said in check.found) == (status, True)
    assert ("train.ring.device=cpu" in check.advice) == (status == "fail")


@pytest.mark.parametrize(("num_ranks", "overrides", "status", "said"), [
    pytest.param(2, (), "ok", "2 GPUs (0, 1) in CUDA_VISIBLE_DEVICES or nvidia-smi -L for 2 rank(s)", id="one each"),
    pytest.param(1, (), "ok", "1 GPU (0) in CUDA_VISIBLE_DEVICES or nvidia-smi -L for 1 rank(s)", id="one to spare"),
    pytest.param(3, (), "fail", "this machine has 2 GPUs (0, 1)", id="too few"),
    pytest.param(3, ("train.ring.allow_cpu_fallback=true",), "warn", "2 GPUs (0, 1)", id="too few, where the CPU will do")])
def test_the_gpus_of_a_machine_are_counted_against_the_ranks(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_ranks: int, overrides: tuple[str, ...], status: str, said: str) -> None:
    monkeypatch.setenv("PATH", str(nvidia_smi(tmp_path, TWO)), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    here = machine(packages=TORCH_WITH_GPU)
    check = check_gpu(session(spark__master="local[4]"), [task(here)], needs(CUDA, f"train.num_ranks={num_ranks}", *overrides), here)
    assert (check.status, said in check.found) == (status, True)


def test_missing_gpus_are_no_failure_where_the_cpu_will_do() -> None:
    assert check_gpu(session(), [task()], needs(CUDA, "train.ring.allow_cpu_fallback=true"), machine()).status == "warn"
    assert check_gpu(None, [], needs(), machine()).status == "ok"


@pytest.mark.parametrize("name", ENCRYPTING)
def test_the_doctor_fails_where_a_ring_in_plaintext_is_refused_and_warns_where_it_is_allowed(name: str) -> None:
    far, near, switched_on = [task(), task(machine(host="beta"))], [task(), task()], {name.replace(".", "__"): "true"}
    cluster, here = session(spark__master="spark://here:7077", **switched_on), session(spark__master="local[2]", **switched_on)
    for reports in (far, near):  # the next ring may get executors on other machines
        refused = guarded("encryption", partial(check_encryption, cluster, reports, needs()))
        assert (refused.status, f"{name} is true" in refused.found) == ("fail", True)
        assert "train.ring.allow_plaintext=true" in refused.advice
    assert check_encryption(cluster, far, needs("train.ring.allow_plaintext=true")).status == "warn"
    assert check_encryption(here, near, needs()).status == "ok"
    assert check_encryption(session(spark__master="spark://here:7077"), far, needs()).status == "ok"


def test_a_report_survives_its_way_through_json() -> None:
    report = task(gpus=["0"], trouble=["x"], sees_probe=True)
    assert TaskReport.from_json(report.to_json()) == report
