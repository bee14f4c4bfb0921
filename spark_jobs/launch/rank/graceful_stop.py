"""Graceful stop of a Spark task whose executor is about to end: its rank may save first.

    YARN takes a container back   SIGTERM to the executor's JVM, which ends at once (preemption, yarn application -kill)
    or it dies, or its driver     pyspark's daemon finds its parent gone, and sends its workers, one of which is the task, SIGHUP
    the task                      asks its rank to stop (SIGTERM) and keeps serving the ring, for at most GRACE_S
    the ranks                     agree in the next step, save after it, and end

Without this, the rank's guard would end the rank as soon as the task is gone. If Spark itself ends a ring because one of its tasks
failed, it kills the other tasks, and their ranks are not asked.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRACE_S = 8.0
"""Seconds from the call to the end of all that is left."""


@contextmanager
def graceful_stop(ask: Callable[[], None], *, grace_s: float = GRACE_S) -> Iterator[None]:
    """While the block runs, call ``ask`` on SIGHUP or SIGTERM to this process, and end the process ``grace_s`` later.

    Outside the main thread, where Python handles no signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    end = threading.Timer(grace_s, os._exit, [1])
    end.daemon = True
    first = threading.Lock()

    def hear(*_: object) -> None:
        if first.acquire(blocking=False):  # a second call may interrupt this one anywhere
            ask()
            end.start()

    before = {number: signal.signal(number, hear) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        end.cancel()  # the process may stay and run the next launch's task
