"""Spark's own channel between the tasks of a barrier stage, with our own deadline.

Spark lets a task wait for the others for ``spark.barrier.sync.timeout``: a year by default, and a job cannot set it. A task that never
comes (its Python worker or executor was suspended) would keep the others waiting that long.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from sparkring.errors import DeadlinePassed

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext


class SparkMeeting:
    """The meeting of a barrier stage's tasks by way of Spark's driver; see ``LocalMeeting``."""

    def __init__(self, context: BarrierTaskContext) -> None:
        self._context = context

    @property
    def host(self) -> str:
        """The name or address under which Spark knows this task's executor."""
        return self.hosts(within_s=0)[self._context.partitionId()]

    def hosts(self, *, within_s: float) -> list[str]:
        """The name or address of each task's executor, by partition."""
        return [info.address.rpartition(":")[0] for info in self._context.getTaskInfos()]

    def gather(self, text: str, *, within_s: float) -> list[str]:
        """Give this task's text and get everyone's, by partition.

        Args:
            text: This task's text.
            within_s: Seconds to wait for the others.
        Raises:
            DeadlinePassed: not all of them came.
        """
        answers: queue.SimpleQueue[list[str] | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._ask, args=(text, answers), name="sparkring-gather", daemon=True).start()
        try:
            answer = answers.get(timeout=within_s)
        except queue.Empty:
            raise DeadlinePassed(f"a task of this ring did not come within {within_s:g} s; this one waited for it.") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _ask(self, text: str, answers: queue.SimpleQueue[list[str] | BaseException]) -> None:
        """Gather in a thread, which is abandoned when the deadline passes: Spark ends its wait with the stage."""
        try:
            answers.put(self._context.allGather(text))
        except BaseException as error:  # noqa: BLE001 (the waiting task gets it)
            answers.put(error)
