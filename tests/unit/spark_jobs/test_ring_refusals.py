"""What a launch is refused for: what tasks find out about each other, and what Spark says."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import RingConfig
from sparkring.errors import ConfigError, EnvironmentProblem, ExecutorLost, NotEnoughSlots, RingError, SparkringError
from sparkring.spark_jobs.launch.barrier.launcher import _why_broken
from sparkring.spark_jobs.launch.barrier.task import Launch, gpu_objection, objection
from sparkring.spark_jobs.launch.meeting.driver import DriverMeeting
from sparkring.spark_jobs.launch.meeting.encryption import ENCRYPTING, require_plaintext_allowed
from sparkring.spark_jobs.launch.meeting.hosts import TaskFacts
from sparkring.spark_jobs.launch.rank.environment import nccl_interface
from sparkring.spark_jobs.launch.rank.gpu import common_device, unusable
from sparkring.spark_jobs.spark.slots import local_slots, require_on_demand, too_few_slots
from sparkring.spark_jobs.spark.watched_job import explain

LAUNCH = Launch(
    num_ranks=2, payload=b"", token="t", secret="s", threads=1, device="cuda", allow_cpu_fallback=False, deadline_s=1, heartbeat_s=1,
    shared_memory=True, meet_within_s=40.0, not_after=100.0, driver_memory="m", driver_path=(), sparkring="1.2.3", python="3.11")
FACTS = TaskFacts(
    hostname="alpha", spark_host="alpha.example", network="n", memory="m", address="10.0.0.1", interface="eth0",
    addresses=("10.0.0.1",), sparkring="1.2.3", python="3.11", gpu="0", clock=99.0)
TOO_FEW = too_few_slots("yarn", wanted=7, slots=None)


def test_tasks_that_fit_make_a_ring() -> None:
    assert objection(LAUNCH, [FACTS, replace(FACTS, hostname="beta", network="o", memory="p")], on_one_host=False) is None


@pytest.mark.parametrize(("change", "words"), [
    pytest.param({"sparkring": "1.2.2"}, "on beta has sparkring 1.2.2 on Python 3.11, the driver has 1.2.3 on 3.11", id="sparkring"),
    pytest.param({"python": "3.12"}, "on beta has sparkring 1.2.3 on Python 3.12, the driver has 1.2.3 on 3.11", id="Python"),
    pytest.param({"network": "o"}, "beta and alpha do not share a network", id="one name for two machines"),
    pytest.param({"gpu": None}, "Spark assigned no GPU to the task on beta", id="no GPU"),
    pytest.param({"clock": 142.0}, "on beta started 42 seconds after this launch was given up", id="too late"),
])
def test_a_task_that_does_not_fit_is_named(change: dict[str, object], words: str) -> None:
    beta = replace(FACTS, hostname="beta", **change)  # type: ignore[arg-type]
    assert words in str(objection(LAUNCH, [FACTS, beta], on_one_host=True))


def test_no_gpu_is_no_objection_where_the_config_lets_ranks_fall_back() -> None:
    assert objection(replace(LAUNCH, allow_cpu_fallback=True), [replace(FACTS, gpu=None)], on_one_host=True) is None


@pytest.mark.parametrize(("change", "words"), [
    pytest.param({"gpu": "1"}, None, id="another GPU of the host"),
    pytest.param({"memory": "o"}, None, id="another host"),
    pytest.param({}, "Spark assigned GPU 0 on alpha to 2 ranks, and NCCL needs one for each; set spark.task.resource.gpu.amount=1",
                 id="the same GPU")])
def test_two_ranks_on_one_gpu_are_refused(change: dict[str, object], words: str | None) -> None:
    facts = [FACTS, replace(FACTS, **change)]  # type: ignore[arg-type]
    assert str(gpu_objection(LAUNCH, facts)).startswith(str(words))
    assert gpu_objection(replace(LAUNCH, device="cpu"), facts) is None


def test_ranks_without_a_gpu_share_none() -> None:
    without = replace(FACTS, gpu=None)
    assert gpu_objection(replace(LAUNCH, allow_cpu_fallback=True), [without, without]) is None


@pytest.mark.parametrize(("cuda_error", "nccl_built", "found"), [
    (None, True, None), ("RuntimeError: no CUDA", False, "RuntimeError: no CUDA"), (None, False, "its Horovod was built without NCCL")])
def test_a_rank_on_a_gpu_needs_cuda_and_nccl(cuda_error: str | None, nccl_built: bool, found: str | None) -> None:
    problem = unusable(cuda_error=cuda_error, nccl_built=nccl_built)
    assert str(problem).startswith(str(found))
    if found is not None:
        with pytest.raises(EnvironmentProblem, match=f"no usable GPU: {found}"):
            common_device([None, problem], allow_cpu_fallback=False)


def test_nccl_is_given_one_interface_and_not_all_that_begin_like_it() -> None:
    assert nccl_interface("eth1") == "=eth1"  # "eth1" would stand for eth10, too


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
    meeting = SimpleNamespace(**{"complete": False, "closed": False, "lost": None, "num_come": 0, "address": ("10.0.0.1", 7), **state})
    error = _why_broken(cast("DriverMeeting", meeting), 4, "yarn", num_ended)
    assert error is None if kind is None else isinstance(error, kind)
    assert _why_broken(None, 4, "yarn", num_ended) is None


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
