"""Ctrl-C ends a command with one line and exit code 130, whatever Spark is doing at that moment.

An exception in the middle of a call to the JVM would leave the reply unread, on the connection that the clean-up uses next. So during such
a call Spark's jobs are cancelled from another thread, until the call raises; and while Spark starts, its JVM is ended
(spark_jobs/spark/start.py). At any other moment ``KeyboardInterrupt`` is raised at once:

    Ctrl-C    in a call to the JVM       cancel jobs, quietly and again and again; after GRACE_S raise anyway
              elsewhere, or once more    raise KeyboardInterrupt
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT
GRACE_S = 10.0
"""Seconds for the call to the JVM to return."""
CANCEL_EVERY_S = 0.2
"""Seconds between two cancellations: the job that follows a cancelled one must not run either."""
_COMMANDS: ContextVar[Interrupt] = ContextVar("_COMMANDS")
"""That of the command that runs."""


def interrupted() -> bool:
    """Whether the command that runs here was interrupted: an error of it now comes from that, whatever its class."""
    current = _COMMANDS.get(None)
    return current is not None and current.asked


def cancel_spark_jobs() -> None:
    """Cancel all jobs of this process's session, whose JVM logs nothing from now on."""
    context = _context()
    if context is not None:
        context.setLogLevel("OFF")
        context.cancelAllJobs()


def cancel_jobs() -> None:
    """Cancel all jobs of this process's session, which is used further."""
    context = _context()
    if context is not None:
        context.cancelAllJobs()


def _context() -> Any:
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.SparkContext._active_spark_context  # noqa: SLF001 (getOrCreate would make one)


class Interrupt:
    """Whether the command was interrupted, and the handler of SIGINT that notes it.

    Args:
        cancel: Makes a call to the JVM return.
    """

    def __init__(self, cancel: Callable[[], None] = cancel_spark_jobs) -> None:
        self.asked = False
        self._cancel, self._over = cancel, threading.Event()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGINT while the block runs, in the main thread; a process that ignores SIGINT continues to do so."""
        before = signal.getsignal(signal.SIGINT)
        if before == signal.SIG_IGN:
            yield
            return
        outer = _COMMANDS.set(self)
        signal.signal(signal.SIGINT, self._on_sigint)
        try:
            yield
        finally:
            self._over.set()
            _COMMANDS.reset(outer)
            signal.signal(signal.SIGINT, before)

    def _on_sigint(self, _: int, frame: FrameType | None) -> None:
        first, self.asked = not self.asked, True
        if not (first and _calls_jvm(frame)):
            raise KeyboardInterrupt
        threading.Thread(target=self._cancel_until_over, name="sparkring-interrupt", daemon=True).start()

    def _cancel_until_over(self) -> None:
        for _ in range(round(GRACE_S / CANCEL_EVERY_S)):
            with suppress(Exception):  # a JVM that is ending
                self._cancel()
            if self._over.wait(CANCEL_EVERY_S):
                return
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _calls_jvm(frame: FrameType | None) -> bool:
    """Whether the code that a signal interrupted waits for an answer of the JVM."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("py4j."):
            return True
        frame = frame.f_back
    return False
