"""One Spark job, run in a thread so that the caller can give it up: when its tasks do not start in time, or on Ctrl-C.

What Spark says about a job that failed becomes one of our errors here.
"""

from __future__ import annotations

import queue
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol

from sparkring.errors import EnvironmentProblem, NotEnoughSlots, RingError, SparkringError
from sparkring.spark_jobs.slots import master_of, spark_context

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

LOOK_S = 0.2
"""Seconds between two looks at a job that has not started, or not ended."""
GIVE_UP_S = 10.0
"""Seconds to cancel a job again and again."""


def collect_when_started(frame: DataFrame, spark: SparkSession, *, tag: str, num_tasks: int, within_s: float) -> list[Row]:
    """Collect ``frame``, whose tasks must start within ``within_s`` seconds.

    Args:
        frame: The work, one barrier stage.
        spark: Its session.
        tag: A name of its own for the job, by which it is found and cancelled.
        num_tasks: Tasks that the job needs at once; for the error.
        within_s: Seconds for Spark to start them.
    Raises:
        NotEnoughSlots: they did not start.
        SparkringError: Spark ended the job.
    """
    from pyspark import InheritableThread

    sc = spark_context(spark)
    job: _Job = _ConnectJob(spark, tag) if sc is None else _ClassicJob(sc, tag)
    outcomes: queue.SimpleQueue[list[Row] | BaseException] = queue.SimpleQueue()
    ended = threading.Event()
    too_late = NotEnoughSlots(wanted=num_tasks, slots=None, master=master_of(spark))
    collecting = InheritableThread(target=_collect, args=(frame, job, outcomes), session=spark, daemon=True)
    collecting.start()
    threading.Thread(target=_watch_start, args=(job, outcomes, ended, time.monotonic() + within_s, too_late), daemon=True).start()
    try:
        # Ctrl-C is heard here. This thread asks Spark nothing meanwhile: PySpark's handler for it speaks to Spark in this very
        # thread, and would break into the talk.
        outcome = outcomes.get()
    except BaseException:
        _give_up(job, collecting)
        raise
    finally:
        ended.set()
        job.close()
    if outcome is too_late:
        _give_up(job, collecting)
        raise too_late
    if isinstance(outcome, BaseException):
        raise explain(outcome, num_tasks=num_tasks) from outcome
    return outcome


def explain(error: BaseException, *, num_tasks: int) -> SparkringError:
    """Put what Spark said about a failed job into one line."""
    text = str(error)
    if "SPARK-24819" in text or "requires more slots" in text:
        return NotEnoughSlots(wanted=num_tasks, slots=None, master="Spark")
    wrong_python = (re.search(r"No module named '[\w.]+'", text)
                    or re.search(r"Python in worker has different version: [\d.]+ than that in driver: [\d.]+", text))
    if wrong_python:
        return EnvironmentProblem(
            f"the executors' Python does not serve ({wrong_python.group()}); install sparkring and its dependencies there, or point "
            f"PYSPARK_PYTHON at a Python that has them, such as {sys.executable} on this machine.")
    return RingError(f"Spark ended the ring: {' '.join(_said(text))[:600]} -- see the executors' logs.")


def _said(text: str) -> list[str]:
    """The lines of Java's and Python's stack traces that say something: the calls are indented."""
    empty = re.compile(r"\s|$|An error occurred while calling|Driver stacktrace|.*Traceback \(most recent call last\)")
    return [line.removeprefix(": ") for line in text.splitlines() if not empty.match(line)]


class _Job(Protocol):
    def name(self) -> None:
        """Tag what this thread starts from now on."""
        ...

    def started(self) -> bool:
        """Whether a task runs or has run; a barrier stage starts all its tasks at once."""
        ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class _ClassicJob:
    def __init__(self, sc: SparkContext, tag: str) -> None:
        self._sc, self._tag = sc, tag

    def name(self) -> None:
        self._sc.addJobTag(self._tag)

    def started(self) -> bool:
        tracker = self._sc.statusTracker()
        numbers = self._sc._jsc.sc().statusTracker().getJobIdsForTag(self._tag)  # noqa: SLF001 (PySpark's tracker does not know tags)
        jobs = [tracker.getJobInfo(number) for number in numbers]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return any(stage and stage.numActiveTasks + stage.numCompletedTasks + stage.numFailedTasks for stage in stages)

    def cancel(self) -> None:
        self._sc.cancelJobsWithTag(self._tag)

    def close(self) -> None:
        """The tag goes with its thread."""


class _ConnectJob:
    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark, self._tag = spark, tag
        self._thread = 0
        self._started = False
        spark.registerProgressHandler(self._on_progress)

    def name(self) -> None:
        self._thread = threading.get_ident()
        self._spark.addTag(self._tag)

    def started(self) -> bool:
        return self._started

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)

    def close(self) -> None:
        self._spark.removeProgressHandler(self._on_progress)

    def _on_progress(self, *, inflight_tasks: int, **_: object) -> None:
        """Called for all jobs of the session, each in the thread that collects it."""
        self._started |= inflight_tasks > 0 and threading.get_ident() == self._thread


def _collect(frame: DataFrame, job: _Job, outcomes: queue.SimpleQueue[list[Row] | BaseException]) -> None:
    try:
        job.name()
        outcomes.put(frame.collect())
    except BaseException as error:  # noqa: BLE001 (the waiting caller gets it)
        outcomes.put(error)


def _give_up(job: _Job, collecting: threading.Thread) -> None:
    """Cancel the job until it has ended: at the first try Spark may not have had it yet."""
    deadline = time.monotonic() + GIVE_UP_S
    while collecting.is_alive() and time.monotonic() < deadline:
        job.cancel()
        collecting.join(LOOK_S)


def _watch_start(job: _Job, outcomes: queue.SimpleQueue[list[Row] | BaseException], ended: threading.Event, deadline: float,
                 too_late: NotEnoughSlots) -> None:
    """End the wait for a job whose tasks have not started by ``deadline``."""
    while not ended.wait(LOOK_S) and not job.started():
        if time.monotonic() > deadline:
            outcomes.put(too_late)
            return
