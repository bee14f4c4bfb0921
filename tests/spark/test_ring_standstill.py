"""A task that stands still, before the ring has met or when the others have ended: named within a deadline, and the next ring has none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import RingConfig
from sparkring.errors import DeadlinePassed
from sparkring.pipelines.parallel.context import RankContext
from sparkring.spark_jobs.ring import run_ring
from tests.support import seams
from tests.support.ring_driver import wait_until
from tests.support.spark_sessions import own_context

RANKS = 3

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Its workers are stopped and killed here."""
    with own_context(f"local[{RANKS}]") as session:
        yield session


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.LAUNCHER_LATE_START_S, 2.0)
    monkeypatch.setattr(seams.WATCHED_JOB_LAST_TASK_S, 4.0)


def _task(context: RankContext) -> int:
    """Process id of this rank's task."""
    return int(os.environ["SPARKRING_TASK"])


def _stop_a_task(context: RankContext, path: str, others_fail: bool) -> int:
    """Stop the task of rank 1, so that it cannot report its rank's end."""
    if context.rank == 1:
        os.kill(_task(context), signal.SIGSTOP)
        Path(f"{path}.part").write_text(str(_task(context)), encoding="ascii")
        Path(f"{path}.part").rename(path)
    elif others_fail:
        wait_until(Path(path).exists, "the task of rank 1 to stand still")
        raise ValueError("the user's mistake")
    return 0


def _tasks(spark: SparkSession) -> list[int]:
    tasks: list[int] = run_ring(_task, num_ranks=RANKS, spark=spark)
    return tasks


@pytest.mark.nightly
def test_a_task_that_never_comes_is_named_and_the_next_ring_does_without_it(spark: SparkSession) -> None:
    stopped = psutil.Process(_tasks(spark)[1])  # Spark keeps it for the next launch
    stopped.suspend()
    with pytest.raises(DeadlinePassed, match=r"^task \d on \S+ did not come or hangs: the ring's other tasks ended 4 s ago") as raised:
        run_ring(_task, num_ranks=RANKS, spark=spark, config=RingConfig(start_timeout_s=20.0))
    assert f" on {raised.value.host} did not come" in str(raised.value)
    psutil.wait_procs([stopped], timeout=60)
    assert not stopped.is_running()
    assert len(set(_tasks(spark))) == RANKS


@pytest.mark.parametrize("others_fail", [
    pytest.param(True, id="as one of them has failed"),
    pytest.param(False, id="or has heard nothing of it for a minute", marks=pytest.mark.nightly)])
def test_a_task_that_stands_still_when_the_others_have_ended_is_named(spark: SparkSession, tmp_path: Path, *, others_fail: bool) -> None:
    path = tmp_path / "stopped"
    # Task 0, which keeps the board, may still wait for task 1 to leave it.
    with pytest.raises(DeadlinePassed, match=r"^(task 0 on \S+ and )?task 1 on \S+ did not come or hangs"):
        run_ring(_stop_a_task, str(path), others_fail, num_ranks=RANKS, spark=spark)
    stopped = int(path.read_text(encoding="ascii"))
    psutil.wait_procs([psutil.Process(stopped)] if psutil.pid_exists(stopped) else [], timeout=60)
    assert stopped not in _tasks(spark)


def _suspend_the_worker(context: RankContext) -> int:
    """Suspend the Spark worker of rank 1, of which this process is a child, and return."""
    if context.rank == 1:
        workers = [process for process in psutil.Process().parents() if "pyspark.daemon" in " ".join(process.cmdline())]
        workers[0].suspend()
    return 0


@pytest.mark.nightly
def test_a_task_that_stands_still_under_upstream_s_launcher_ends_the_ring(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.HOROVOD_LAST_RANK_S, 5.0)
    with pytest.raises(DeadlinePassed, match="rank 1 did not end within 6 s after the rank before it: its task hangs"):
        run_ring(_suspend_the_worker, num_ranks=RANKS, spark=spark, config=RingConfig(launcher="horovod.spark", deadline_s=6.0))
    assert len(set(_tasks(spark))) == RANKS
