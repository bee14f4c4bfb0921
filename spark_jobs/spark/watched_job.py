"""One Spark job, run in a thread so that the caller can cancel it: when its tasks do not start in time, when one of them does not end with
the others, when Spark has lost them all, or on Ctrl-C. Spark's message about a failed job becomes one of our errors here.
"""

from __future__ import annotations

import math
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from sparkring.errors import DeadlinePassed, EnvironmentProblem, ExecutorLost, NotEnoughSlots, RingError, SparkringError
from sparkring.spark_jobs.spark.slots import master_of, slots_of, spark_context, too_few_slots

if TYPE_CHECKING:
    from pyspark import SparkContext, SparkStageInfo
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo

    from sparkring.spark_jobs.spark.task_resources import TaskResources
    from sparkring.spark_jobs.spark.versions.profiles import Collectable

T = TypeVar("T")

LOOK_S = 0.2
"""Seconds between two polls of a job that has not started, or not ended."""
LOOK_AT_ENDS_S = 2.0
"""Seconds between two polls of the ended tasks of a job that runs for the whole training."""
GIVE_UP_S = 10.0
"""Seconds in which a job is cancelled again and again."""
OWN_WORDS_S = 5.0
"""Seconds for tasks to end by themselves and report why, once it is known that the job cannot succeed."""
MAX_TASKS = 10_000
"""Largest number of tasks of a stage that Spark is asked about."""
LAST_TASK_S = 30.0
"""Seconds for the tasks of a ring to end once the first has. Normally they end within a few seconds of each other; one that does not is
suspended, with its Python worker or its executor, and Spark would wait for it forever."""


@dataclass(frozen=True)
class CancelWhen:
    """When to cancel a job whose tasks run at once; also once some have ended and others have not within ``LAST_TASK_S``."""

    may_end_early: int
    """Number of tasks that may end long before the others."""
    lost_after_s: float
    """Seconds that the tasks may still run once Spark has given up all executors. The driver of a cluster that it no longer reaches gives
    them up, and yet the stage does not end."""
    broken: Callable[[int], SparkringError | None]
    """Called with the number of tasks that have ended; returns the error of a job that cannot succeed any more, or None."""


def collect_when_started(frame: Collectable, spark: SparkSession, *, tag: str, num_tasks: int, within_s: float,
                         resources: TaskResources | None = None, cancel: CancelWhen | None = None) -> list[Row]:
    """Collect ``frame``, whose tasks must start within ``within_s`` seconds.

    Args:
        frame: The work, one stage.
        spark: Its session.
        tag: A unique name, by which the job is found and cancelled.
        num_tasks: Tasks that the job needs at once; for the error.
        within_s: Seconds for Spark to start them.
        resources: Those of each task, if the stage has a profile; for the error.
        cancel: When to cancel the job once it has started; None: never.
    Raises:
        NotEnoughSlots: the tasks did not start.
        DeadlinePassed: some tasks ended and the others did not, or Spark has lost them all.
        SparkringError: the error that ``cancel.broken`` returned.
        SparkringError: Spark ended the job.
    """
    from sparkring.spark_jobs.spark.versions.threads import inheriting_thread  # imports pyspark

    sc = spark_context(spark)
    job: _Job = _ConnectJob(spark, tag) if sc is None else _ClassicJob(sc, tag)
    outcomes: queue.SimpleQueue[list[Row] | BaseException] = queue.SimpleQueue()
    ended = threading.Event()
    too_few = too_few_slots(master_of(spark), wanted=num_tasks, slots=None, resources=resources)
    collecting = inheriting_thread(spark, _collect, frame, job, outcomes)
    collecting.start()

    def watch() -> None:
        if _started_in_time(job, ended, time.monotonic() + within_s):
            error = None if cancel is None else _why_not_ended(job, ended, num_tasks, cancel, partial(slots_of, spark, resources))
            if error is not None:
                outcomes.put(error)
        elif not ended.is_set():
            outcomes.put(too_few)

    threading.Thread(target=watch, name="sparkring-job", daemon=True).start()
    try:
        # Ctrl-C arrives here. This thread makes no call to Spark meanwhile: PySpark's handler makes one in the same thread, which would
        # interleave with it.
        outcome = outcomes.get()
    except BaseException:
        _give_up(job, collecting)
        raise
    finally:
        ended.set()
        job.close()
    if isinstance(outcome, SparkringError):  # ours: Spark still runs the job
        _give_up(job, collecting)
        raise outcome
    if isinstance(outcome, BaseException):
        raise explain(outcome, too_few=too_few, host_of=job.host_of) from outcome
    return outcome


def explain(error: BaseException, *, too_few: NotEnoughSlots, host_of: Callable[[str], str]) -> SparkringError:
    """Put Spark's message about a failed job into one line.

    Args:
        error: Spark's.
        too_few: The error to return if Spark refuses the job because it needs more slots than there are.
        host_of: Returns where an executor ran.
    """
    text = str(error)
    if "SPARK-24819" in text or "requires more slots" in text:
        return too_few
    wrong_python = (re.search(r"No module named '[\w.]+'", text)
                    or re.search(r"Python in worker has different version: [\d.]+ than that in driver: [\d.]+", text))
    if wrong_python:
        return EnvironmentProblem(
            f"the executors' Python cannot be used ({wrong_python.group()}); install sparkring and its dependencies there, or point "
            f"PYSPARK_PYTHON at a Python that has them, such as {sys.executable} on this machine.")
    words = f"Spark ended the ring: {' '.join(_said(text))[:600]}; see the executors' logs."
    lost = re.search(r"ExecutorLostFailure \(executor (\S+)", text)
    if lost is None:
        return RingError(words)
    blameless = "unrelated to the running tasks" in text  # e.g. the cluster took it back
    return ExecutorLost(words, host="" if blameless else _ask_spark(partial(host_of, lost.group(1)), otherwise=""))


def _said(text: str) -> list[str]:
    """The informative lines of Java's and Python's stack traces: the calls are indented."""
    empty = re.compile(r"\s|$|An error occurred while calling|Driver stacktrace|.*Traceback \(most recent call last\)")
    return [line.removeprefix(": ") for line in text.splitlines() if not empty.match(line)]


class _Job(Protocol):
    def name(self) -> None:
        """Tag the jobs that this thread starts from now on."""
        ...

    def started(self) -> bool:
        """Whether a task runs or has run; a barrier stage starts all its tasks at once."""
        ...

    def num_ended(self) -> int:
        """Tasks that have ended."""
        ...

    def running(self) -> list[str]:
        """Number and host of each task that still runs, for messages."""
        ...

    def host_of(self, executor: str) -> str:
        """Spark's name of the host of an executor, also of a lost one; empty if unknown."""
        ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class _ClassicJob:
    def __init__(self, sc: SparkContext, tag: str) -> None:
        self._sc, self._tag = sc, tag

    def name(self) -> None:
        self._sc.addJobTag(self._tag)

    def started(self) -> bool:
        return any(stage.numActiveTasks + stage.numCompletedTasks + stage.numFailedTasks for stage in self._stages())

    def num_ended(self) -> int:
        return sum(stage.numCompletedTasks for stage in self._stages())

    def running(self) -> list[str]:
        store = self._sc._jsc.sc().statusStore()  # noqa: SLF001 (PySpark shows no tasks)
        lists = [store.taskList(stage.stageId, stage.currentAttemptId, MAX_TASKS) for stage in self._stages()]
        tasks = [tasks.apply(place) for tasks in lists for place in range(tasks.size())]
        return [f"task {number} on {host}" for number, host in sorted((task.index(), task.host()) for task in tasks
                                                                      if task.status() == "RUNNING")]

    def host_of(self, executor: str) -> str:
        store = self._sc._jsc.sc().statusStore()  # noqa: SLF001 (PySpark shows no executors)
        every = store.executorList(False)  # noqa: FBT003 (Java has no keywords; lost ones, too)
        summaries = [every.apply(place) for place in range(every.size())]
        return next((str(one.hostPort()).rpartition(":")[0] for one in summaries if one.id() == executor), "")

    def _stages(self) -> list[SparkStageInfo]:
        tracker = self._sc.statusTracker()
        numbers = self._sc._jsc.sc().statusTracker().getJobIdsForTag(self._tag)  # noqa: SLF001 (PySpark's tracker does not know tags)
        jobs = [tracker.getJobInfo(number) for number in numbers]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return [stage for stage in stages if stage]

    def cancel(self) -> None:
        self._sc.cancelJobsWithTag(self._tag)

    def close(self) -> None:
        """Nothing to close: the tag ends with its thread."""


class _ConnectJob:
    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark, self._tag = spark, tag
        self._thread = 0
        self._started, self._ended = False, 0
        spark.registerProgressHandler(self._on_progress)

    def name(self) -> None:
        self._thread = threading.get_ident()
        self._spark.addTag(self._tag)

    def started(self) -> bool:
        return self._started

    def num_ended(self) -> int:
        return self._ended

    def running(self) -> list[str]:
        return []  # Connect reports only how many

    def host_of(self, executor: str) -> str:
        """Connect does not report it."""
        return ""

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)

    def close(self) -> None:
        self._spark.removeProgressHandler(self._on_progress)

    def _on_progress(self, *, stages: Iterable[StageInfo] | None, inflight_tasks: int, **_: object) -> None:
        """Called for all jobs of the session, each in the thread that collects it."""
        if threading.get_ident() == self._thread:
            self._started |= inflight_tasks > 0
            self._ended = sum(stage.num_completed_tasks for stage in stages or ())


def _collect(frame: Collectable, job: _Job, outcomes: queue.SimpleQueue[list[Row] | BaseException]) -> None:
    try:
        job.name()
        outcomes.put(frame.collect())
    except BaseException as error:  # noqa: BLE001 (the waiting caller gets it)
        outcomes.put(error)


def _give_up(job: _Job, collecting: threading.Thread) -> None:
    """Cancel the job until it has ended: at the first try Spark may not have received it yet."""
    deadline = time.monotonic() + GIVE_UP_S
    while collecting.is_alive() and time.monotonic() < deadline:
        job.cancel()
        collecting.join(LOOK_S)


def _started_in_time(job: _Job, ended: threading.Event, deadline: float) -> bool:
    """Wait until the job's tasks have started; False if they have not by ``deadline`` or the job ended first."""
    while not ended.wait(LOOK_S):
        if _ask_spark(job.started, otherwise=False):
            return True
        if time.monotonic() > deadline:
            return False
    return False


def _why_not_ended(job: _Job, ended: threading.Event, num_tasks: int, cancel: CancelWhen,
                   slots: Callable[[], int | None]) -> SparkringError | None:
    """Wait until the job has ended (None) or must be cancelled."""
    first = lost = math.inf
    while not ended.wait(min(LOOK_AT_ENDS_S, LAST_TASK_S)):
        num_ended = _ask_spark(job.num_ended, otherwise=0)
        error = cancel.broken(num_ended)
        if error is not None:
            return None if ended.wait(OWN_WORDS_S) else error
        if cancel.may_end_early < num_ended < num_tasks:
            first = min(first, time.monotonic())
        if time.monotonic() - first > LAST_TASK_S:
            return _stuck(job)
        lost = min(lost, time.monotonic()) if _ask_spark(slots, otherwise=None) == 0 else math.inf
        if time.monotonic() - lost > cancel.lost_after_s:
            return _lost(job, num_tasks, cancel.lost_after_s)
    return None


def _stuck(job: _Job) -> DeadlinePassed:
    running: list[str] = _ask_spark(job.running, otherwise=[])
    who, hosts = " and ".join(running) or "some task", _hosts(running)
    return DeadlinePassed(f"{who} did not come or hangs: the ring's other tasks ended {LAST_TASK_S:g} s ago, having waited for it; "
                          "see the log of its executor, and that its machine is not suspended, out of memory or cut off.",
                          host=hosts[0] if len(hosts) == 1 else "")


def _lost(job: _Job, num_tasks: int, after_s: float) -> DeadlinePassed:
    running: list[str] = _ask_spark(job.running, otherwise=[])
    hosts = " and ".join(_hosts(running)) or "the executors' hosts"
    return DeadlinePassed(f"this driver has heard from none of the {num_tasks} tasks on {hosts}: Spark gave up the last executor "
                          f"{after_s:g} s ago; see that {hosts} and this machine reach each other over the network.")


def _hosts(running: list[str]) -> list[str]:
    return sorted({task.rpartition(" on ")[2] for task in running})


def _ask_spark(ask: Callable[[], T], *, otherwise: T) -> T:
    """Spark's answer; a session that is ending may raise anything, and the collecting thread reports that."""
    try:
        return ask()
    except Exception:  # noqa: BLE001 (see above)
        return otherwise
