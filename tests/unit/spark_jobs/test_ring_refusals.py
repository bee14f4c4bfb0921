"""What a launch is refused for: what tasks find out about each other, and what Spark says."""

from __future__ import annotations

import json
import queue
from collections.abc import Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import RingConfig
from sparkring.errors import ConfigError, EnvironmentProblem, ExecutorLost, NotEnoughSlots, RingError, SparkringError
from sparkring.pipelines.parallel.context import RankContext
from sparkring.spark_jobs.launch.barrier.launcher import _why_broken
from sparkring.spark_jobs.launch.barrier.task import Launch, _Task, gpu_objection, objection
from sparkring.spark_jobs.launch.horovod.launcher import RankSettings, _context
from sparkring.spark_jobs.launch.meeting.driver import DriverMeeting
from sparkring.spark_jobs.launch.meeting.encryption import ENCRYPTING, require_plaintext_allowed
from sparkring.spark_jobs.launch.meeting.hosts import LOOPBACK, TaskFacts, memory_identity
from sparkring.spark_jobs.launch.meeting.rendezvous import Rendezvous, rendezvous_address
from sparkring.spark_jobs.launch.meeting.status_board import StatusBoard
from sparkring.spark_jobs.launch.meeting.versions import Versions, versions_here
from sparkring.spark_jobs.launch.rank.gpu import AssignedGpu, GpuCheck, check_gpu, common_device
from sparkring.spark_jobs.spark.slots import local_slots, require_on_demand, too_few_slots
from sparkring.spark_jobs.spark.watched_job import explain
from tests.support import seams

VERSIONS = Versions("1.2.3", "3.11", "2.13.0")
LAUNCH = Launch(
    num_ranks=2, payload=b"", token="t", secret="s", threads=1, device="cuda", allow_cpu_fallback=False, deadline_s=1, heartbeat_s=1,
    shared_memory=True, meet_within_s=40.0, not_after=100.0, driver_memory="m", driver_path=(), versions=VERSIONS)
FACTS = TaskFacts(
    hostname="alpha", spark_host="alpha.example", network="n", memory="m", address="10.0.0.1", interface="eth0",
    addresses=("10.0.0.1",), versions=VERSIONS, gpu="0", clock=99.0)
TOO_FEW = too_few_slots("yarn", wanted=7, slots=None)


def test_tasks_that_fit_make_a_ring() -> None:
    assert objection(LAUNCH, [FACTS, replace(FACTS, hostname="beta", network="o", memory="p")], on_one_host=False) is None


@pytest.mark.parametrize(("change", "words"), [
    pytest.param({"versions": replace(VERSIONS, sparkring="1.2.2")},
                 "on beta has sparkring 1.2.2 on Python 3.11, the driver has 1.2.3 on 3.11", id="sparkring"),
    pytest.param({"versions": replace(VERSIONS, python="3.12")},
                 "on beta has sparkring 1.2.3 on Python 3.12, the driver has 1.2.3 on 3.11", id="Python"),
    pytest.param({"versions": replace(VERSIONS, torch="2.11.0")},
                 "on beta has torch 2.11.0, the driver has torch 2.13.0; install", id="torch"),
    pytest.param({"versions": replace(VERSIONS, torch="2.13.0+cpu")},
                 "on beta has torch 2.13.0+cpu, that on alpha has torch 2.13.0; ranks", id="build of torch"),
    pytest.param({"versions": replace(VERSIONS, torch=None)},
                 "on beta has no torch, the driver has torch 2.13.0", id="no torch"),
    pytest.param({"network": "o"}, "beta and alpha do not share a network", id="one name for two machines"),
    pytest.param({"gpu": None}, "Spark assigned no GPU to the task on beta", id="no GPU"),
    pytest.param({"clock": 142.0}, "on beta started 42 seconds after this launch was given up", id="too late"),
])
def test_a_task_that_does_not_fit_is_named(change: dict[str, object], words: str) -> None:
    beta = replace(FACTS, hostname="beta", **change)  # type: ignore[arg-type]
    assert words in str(objection(LAUNCH, [FACTS, beta], on_one_host=True))


def test_gpus_that_the_launcher_deals_out_are_those_of_the_driver_s_machine() -> None:
    dealt = replace(LAUNCH, gpus=("0", "1"))
    assert objection(dealt, [FACTS, replace(FACTS, gpu=None)], on_one_host=True) is None, "a task without a rank has none"
    elsewhere = replace(FACTS, hostname="beta", memory="o")
    assert "a local master on beta, where the driver cannot see" in str(objection(dealt, [elsewhere], on_one_host=True))
    assert objection(LAUNCH, [elsewhere], on_one_host=True) is None, "the control: Spark assigned this one"


@pytest.mark.parametrize("torch", [None, "2.13.0+cpu"])
def test_a_driver_may_have_no_torch_or_another_build_of_it(torch: str | None) -> None:
    beta = replace(FACTS, hostname="beta", versions=replace(FACTS.versions, torch="2.13.0+cu126"))
    launch = replace(LAUNCH, versions=replace(LAUNCH.versions, torch=torch))
    assert objection(launch, [FACTS, FACTS], on_one_host=True) is None
    assert "on beta has torch 2.13.0+cu126, that on alpha has torch 2.13.0" in str(objection(launch, [FACTS, beta], on_one_host=True))


def test_no_gpu_is_no_objection_where_the_config_lets_ranks_fall_back() -> None:
    assert objection(replace(LAUNCH, allow_cpu_fallback=True), [replace(FACTS, gpu=None)], on_one_host=True) is None


@pytest.mark.parametrize(("change", "uuids", "words"), [
    pytest.param({"gpu": "1"}, "ab", None, id="another GPU of the host"),
    pytest.param({"memory": "o"}, "ab", None, id="another host"),
    pytest.param({"gpu": "GPU-a"}, "aa", "GPU 0 on alpha and GPU GPU-a on alpha are one GPU or parts of one", id="one GPU by two names"),
    pytest.param({}, "ab", None, id="another container of the host, which calls its own GPU 0 too"),
    pytest.param({}, [None, None], "Spark assigned GPU 0 on alpha to 2 ranks", id="the same address of GPUs that CUDA cannot use"),
    pytest.param({}, ["a", None], "Spark assigned GPU 0 on alpha to 2 ranks", id="the same address of a GPU that CUDA can use once"),
    pytest.param({}, "aa", "Spark assigned GPU 0 on alpha to 2 ranks, and NCCL needs one for each; set spark.task.resource.gpu.amount=1",
                 id="the same GPU")])
def test_two_ranks_on_one_gpu_are_refused(change: dict[str, object], uuids: Sequence[str | None], words: str | None) -> None:
    facts = [FACTS, replace(FACTS, **change)]  # type: ignore[arg-type]
    assert str(gpu_objection(facts, uuids)).startswith(str(words))


def test_ranks_without_a_gpu_share_none() -> None:
    without = replace(FACTS, gpu=None)
    assert gpu_objection([without, without], [None, None]) is None


@pytest.mark.parametrize(("cuda_error", "nccl_built", "words"), [
    (None, True, None), (RuntimeError("no CUDA\nmore"), False, "RuntimeError: no CUDA"),
    (None, False, "its Horovod was built without NCCL")])
def test_a_rank_on_a_gpu_needs_cuda_and_nccl(
        monkeypatch: pytest.MonkeyPatch, cuda_error: Exception | None, nccl_built: bool, words: str | None) -> None:
    monkeypatch.setattr("torch.zeros", Mock(side_effect=cuda_error))
    monkeypatch.setattr("torch.cuda.get_device_properties", Mock(return_value=SimpleNamespace(uuid="GPU-a")))
    monkeypatch.setattr("horovod.torch.nccl_built", lambda: int(nccl_built))
    found = check_gpu()
    assert str(found.problem).startswith(str(words))
    assert found.uuid == (None if cuda_error else "GPU-a")
    if words is not None:
        with pytest.raises(EnvironmentProblem, match=f"no usable GPU: {words}"):
            common_device([None, found.problem], allow_cpu_fallback=False)


def test_tasks_compare_what_their_ranks_report_of_their_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def agree(uuid: str) -> tuple[str, str]:
        """The device of two ranks on GPUs that Spark calls 0: on ``a`` the first one, the second on ``uuid``."""
        task = object.__new__(_Task)
        task._launch, task._events = LAUNCH, queue.SimpleQueue()
        task._events.put({"kind": "device", "summary": None, "uuid": "a"})
        monkeypatch.setattr(seams.TASK_GATHER, lambda _, mine, **limit: [mine, [None, "an idle task's"], [None, uuid]])  # noqa: ARG005
        return task._agree_on_device(FACTS, facts=[FACTS, FACTS], chosen=[0, 2])

    assert agree("b") == ("cuda:0", "")
    with pytest.raises(EnvironmentProblem, match="Spark assigned GPU 0 on alpha to 2 ranks"):
        agree("a")


def ring_by_horovod(monkeypatch: pytest.MonkeyPatch, *, uuid: str, theirs: Versions | None = None) -> RankContext:
    """The context of rank 0 on a GPU ``a`` that Spark calls 0, by upstream's launcher; rank 1's ``uuid`` is called 0 as well.

    Rank 1 has the versions ``theirs``, or those of rank 0.
    """
    settings = RankSettings(token="t", device="cuda", allow_cpu_fallback=False, deadline_s=20, shared_memory=True, versions=versions_here())
    peer = AssignedGpu(host="alpha", memory=memory_identity(), address="0", uuid=uuid)
    rendezvous = Rendezvous(LOOPBACK, StatusBoard("s", size=2, heartbeat_s=1))
    rendezvous.store.put("sparkring-t", "1", json.dumps([peer, None, asdict(theirs or versions_here())]).encode())
    rendezvous.start(allowed=[LOOPBACK])
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", rendezvous_address(LOOPBACK, rendezvous.port, "s"))
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("horovod.spark.task.get_available_devices", lambda: ["0"])
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename="alpha"))
    monkeypatch.setattr(seams.HOROVOD_LAUNCHER_CHECK_GPU, lambda: GpuCheck(problem=None, uuid="a"))
    try:
        return _context(0, settings)
    finally:
        rendezvous.close()


def test_two_ranks_on_one_gpu_are_refused_by_upstream_s_launcher_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentProblem, match="Spark assigned GPU 0 on alpha to 2 ranks"):
        ring_by_horovod(monkeypatch, uuid="a")
    context = ring_by_horovod(monkeypatch, uuid="b")
    assert (context.rank, context.hosts, context.device) == (0, (0, 0), "cuda:0")


def test_ranks_of_different_builds_of_torch_are_refused_by_upstream_s_launcher_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentProblem, match=r"on alpha has torch 2\.13\.0\+other, that on alpha has .*; ranks of different builds"):
        ring_by_horovod(monkeypatch, uuid="b", theirs=replace(versions_here(), torch="2.13.0+other"))


def test_all_ranks_take_the_same_device() -> None:
    assert common_device([None, None], allow_cpu_fallback=False) == ("cuda:0", "")
    device, note = common_device([None, "GPU 5 is broken"], allow_cpu_fallback=True)
    assert device == "cpu"
    assert note.endswith("GPU 5 is broken")
    with pytest.raises(EnvironmentProblem, match="no usable GPU: GPU 5 is broken"):
        common_device([None, "GPU 5 is broken"], allow_cpu_fallback=False)


@pytest.mark.parametrize(("master", "slots"), [
    ("local", 1), ("local[3]", 3), ("local[3,2]", 3), ("local[*]", None), ("local-cluster[2,1,1024]", None), ("spark://h:7077", None)])
def test_slots_of_a_local_master_are_in_its_name(master: str, slots: int | None) -> None:
    assert local_slots(master) == slots


@pytest.mark.parametrize(("master", "slots", "remedy"), [
    ("local[2]", 2, "set spark.master=local[4], or set train.num_ranks to at most 2."),
    ("local[4]", None, "give Spark more executors or cores, or let other jobs there end."),
    ("yarn", 2, "give Spark more executors or cores, or set train.num_ranks to at most 2."),
    ("yarn", 0, "give Spark more executors or cores."),
    ("yarn", None, "give Spark more executors or cores, or let other jobs there end.")])
def test_too_few_slots_are_answered_with_what_this_session_can_change(master: str, slots: int | None, remedy: str) -> None:
    error = too_few_slots(master, wanted=4, slots=slots)
    assert (error.wanted, error.slots, error.remedy) == (4, slots, remedy)


def test_a_limit_of_executors_is_named_where_it_allows_too_few() -> None:
    properties = {"spark.master": "yarn", "spark.dynamicAllocation.maxExecutors": "3", "spark.executor.cores": "1"}
    session = cast("SparkSession", SimpleNamespace(conf=SimpleNamespace(get=lambda key, default=None: properties.get(key, default))))
    with pytest.raises(NotEnoughSlots, match=r"dynamicAllocation\.maxExecutors=3 has 3 of the 4 .*; raise that, or set train.num_ranks"):
        require_on_demand(session, num_ranks=4)
    require_on_demand(session, num_ranks=3)


@pytest.mark.parametrize(("text", "kind", "words"), [
    pytest.param("org.apache.spark...: [SPARK-24819]: Barrier execution mode does not allow run a barrier stage that requires more slots",
                 NotEnoughSlots, "yarn has fewer than the 7 free slots", id="too few slots"),
    pytest.param("  File \"worker.py\"\nModuleNotFoundError: No module named 'sparkring'\n", EnvironmentProblem,
                 "the executors' Python cannot be used (No module named 'sparkring')", id="sparkring is not there"),
    pytest.param("RuntimeError: [X] Python in worker has different version: 3.10 than that in driver: 3.11, cannot\n", EnvironmentProblem,
                 "(Python in worker has different version: 3.10 than that in driver: 3.11)", id="another Python"),
    pytest.param("An error occurred while calling o1.collect.\n: java.lang.X: Stage failed.\norg.Y: Traceback (most recent call last):\n"
                 "  File \"worker.py\", line 1, in f\n    raise\nOSError: disk full\n\n\tat org.apache.X(Y.scala:1)\n",
                 RingError, "Spark ended the ring: java.lang.X: Stage failed. OSError: disk full; see", id="anything else"),
    pytest.param("Stage failed because barrier task ResultTask(0, 1) finished unsuccessfully.\n"
                 "ExecutorLostFailure (executor 12 exited caused by one of the running tasks) Reason: worker lost",
                 ExecutorLost, "Spark ended the ring: Stage failed because barrier task", id="an executor is lost"),
])
def test_what_spark_says_becomes_one_line(text: str, kind: type[SparkringError], words: str) -> None:
    error = explain(RuntimeError(text), too_few=TOO_FEW, host_of=str)
    assert type(error) is kind
    assert words in str(error)
    assert "\n" not in str(error)
    assert getattr(error, "host", "12") == "12", "the name of what the executor's number stands for"


@pytest.mark.parametrize(("words", "host"), [
    ("caused by one of the running tasks", "host of 12"), ("unrelated to the running tasks", "")], ids=["died", "was taken back"])
def test_a_host_is_to_blame_for_an_executor_that_died_there_and_not_for_one_that_was_taken_back(words: str, host: str) -> None:
    text = f"ExecutorLostFailure (executor 12 exited {words}) Reason: gone"
    error = explain(RuntimeError(text), too_few=TOO_FEW, host_of=lambda executor: f"host of {executor}")
    assert isinstance(error, ExecutorLost)
    assert error.host == host


@pytest.mark.parametrize(("state", "num_ended", "kind"), [
    pytest.param({"complete": True}, 1, None, id="all have come"),
    pytest.param({}, 0, None, id="some are still to come"),
    pytest.param({}, 1, EnvironmentProblem, id="one ended before all had come"),
    pytest.param({"closed": True, "num_come": 3}, 1, NotEnoughSlots, id="too few have come"),
    pytest.param({"complete": True, "lost": ExecutorLost("gone")}, 1, ExecutorLost, id="one was lost")])
def test_why_no_ring_can_come_of_tasks_that_meet_at_the_driver(
        state: dict[str, object], num_ended: int, kind: type[SparkringError] | None) -> None:
    def too_few(come: int) -> NotEnoughSlots:
        return too_few_slots("yarn", wanted=4, slots=come)

    meeting = SimpleNamespace(**{"complete": False, "closed": False, "lost": None, "num_come": 0, "address": ("10.0.0.1", 7), **state})
    error = _why_broken(cast("DriverMeeting", meeting), too_few, num_ended)
    assert error is None if kind is None else isinstance(error, kind)
    assert _why_broken(None, too_few, num_ended) is None


@pytest.mark.parametrize("name", ENCRYPTING)
def test_a_ring_in_plaintext_needs_leave_where_spark_encrypts(name: str) -> None:
    def session(**properties: str) -> SparkSession:
        conf = SimpleNamespace(get=lambda key, default=None: properties.get(key, default))
        return cast("SparkSession", SimpleNamespace(conf=conf))

    cluster = {"spark.master": "spark://a:7077"}
    with pytest.raises(ConfigError, match=f"{name} is true"):
        require_plaintext_allowed(session(**cluster, **{name: "true"}), RingConfig())
    require_plaintext_allowed(session(**cluster, **{name: "true"}), RingConfig(allow_plaintext=True))
    require_plaintext_allowed(session(**cluster, **{name: "false"}), RingConfig())
    require_plaintext_allowed(session(**{"spark.master": "local[2]", name: "true"}), RingConfig())
