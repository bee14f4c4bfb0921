"""``run_ring`` where Spark brings executors on demand and takes them away (dynamic allocation), on a standalone master with two workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import ring_functions
from tests.support.ring_driver import ROOT, Driver, assert_no_process_left, driver, marks
from tests.support.spark_cluster import standalone

ON_DEMAND = {
    "spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "1s", "spark.executor.memory": "512m", "spark.executor.cores": "1",
    "spark.executorEnv.PYTHONPATH": str(ROOT)}  # where upstream's launcher finds a function that has a module

STARTED_WITHIN_S = 75.0
"""For the first executors of a session, on a machine that has other work."""
ALL_WITHIN_S = 30.0
"""For as many as come, later on."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("cluster"), gpus=("0", "1")) as address:
        yield address


@pytest.fixture(scope="module")
def on_demand(master: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driver(tmp_path_factory.mktemp("driver"), {"master": master, **ON_DEMAND}) as running:
        yield running


@pytest.mark.parametrize("launcher", ["barrier", pytest.param("horovod.spark", marks=pytest.mark.nightly)])
def test_executors_come_for_the_ranks_of_a_ring(on_demand: Driver, tmp_path: Path, launcher: str) -> None:
    ranks = on_demand.ring(ring_functions.introduce, str(tmp_path), num_ranks=2, launcher=launcher, deadline_s=40,
                           start_timeout_s=STARTED_WITHIN_S).results
    assert [(told["rank"], told["hosts"], told["sum"]) for told in ranks] == [(rank, [0, 0], 21.0) for rank in range(2)]
    assert {address for told in ranks for address in told["listening"]} <= {"127.0.0.1"}
    assert_no_process_left(ranks[0]["token"])


@pytest.mark.nightly
def test_more_ranks_than_executors_come_for_are_told_how_many_came(on_demand: Driver, tmp_path: Path) -> None:
    outcome = on_demand.ring(ring_functions.introduce, str(tmp_path), num_ranks=3, start_timeout_s=ALL_WITHIN_S)
    assert outcome.error.startswith("NotEnoughSlots")
    assert outcome.attributes == {"wanted": 3, "slots": 2}
    assert outcome.seconds > ALL_WITHIN_S


@pytest.mark.nightly
def test_a_mistake_on_a_rank_comes_back_as_from_a_barrier_stage(on_demand: Driver) -> None:
    outcome = on_demand.ring(ring_functions.raise_on_rank_1, num_ranks=2, start_timeout_s=STARTED_WITHIN_S)
    assert outcome.error.startswith("RankFailed")
    assert "ValueError: the user's mistake" in outcome.message


@pytest.mark.nightly
def test_a_task_that_spark_starts_anew_is_no_second_rank(on_demand: Driver, tmp_path: Path) -> None:
    """An executor is lost; Spark brings another one, and starts the task again there: the function is not called a second time."""
    on_demand.begin(ring_functions.sleep, str(tmp_path), num_ranks=2, start_timeout_s=STARTED_WITHIN_S)
    before = marks(tmp_path, num_ranks=2)
    executor = next(parent for parent in psutil.Process(before[1]["task"]).parents() if parent.name() == "java")
    os.kill(executor.pid, signal.SIGKILL)
    outcome = on_demand.outcome()
    assert outcome.error.startswith("ExecutorLost RingError")
    assert outcome.attributes == {"host": "127.0.0.1"}
    assert "Spark lost task" in outcome.message
    assert_no_process_left(before[0]["token"])
    assert marks(tmp_path, num_ranks=2) == before
    assert len(on_demand.ring(ring_functions.introduce, str(tmp_path), num_ranks=2).results) == 2


@pytest.mark.parametrize(("settings", "said"), [
    pytest.param({"spark.speculation": "true"}, "set spark.speculation=false", id="tasks may run twice"),
    pytest.param({"spark.dynamicAllocation.maxExecutors": "1"}, "with spark.dynamicAllocation.maxExecutors=1 has 1", id="too few at most")])
def test_what_cannot_come_to_a_ring_is_refused_at_once(master: str, tmp_path: Path, settings: dict[str, str], said: str) -> None:
    with driver(tmp_path, {"master": master, **ON_DEMAND, **settings}) as running:
        outcome = running.ring(ring_functions.introduce, str(tmp_path), num_ranks=2)
    assert said in outcome.message
