"""The start of Spark in this process: Ctrl-C ends the JVM that is being started, and PySpark does not take the signal over.

An exception in the middle of the start would leave a JVM that never ends: PySpark deletes the folder to which the JVM is about to write its
port, and the JVM's server survives that error. PySpark's own handler of SIGINT, which each new SparkContext puts in place, would call the
JVM in the middle of another call. So meanwhile the signal is only noted:

    Ctrl-C    a thread ends the JVM -> PySpark's start raises -> the caller's handler of SIGINT is called, in place of that error
              no JVM of ours to end (Connect, spark-submit's): after GRACE_S the caller's handler is called in the middle of the start
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, SimpleNamespace
from typing import Any

import psutil
from py4j.protocol import Py4JError, Py4JJavaError

GRACE_S = 10.0
"""Seconds for the start to raise."""
LOOK_S = 0.05
"""Seconds between two looks for the JVM, which may not have been started when Ctrl-C came."""
ENDED_S = 2.0
"""Seconds in which the system reports that a process has ended whose connection is lost already."""
_MARK = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""In the environment of a JVM that PySpark starts, and of the shell that starts it."""


@contextmanager
def ctrl_c_ends_start() -> Iterator[None]:
    """While the block starts Spark, end the JVM on Ctrl-C; then the handler of SIGINT is the one from before.

    PySpark's own handler takes effect only in place of Python's default one, and after the block. In a thread that is not the main one,
    which gets no signals, nothing is done.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, and the handler from before raised nothing else.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():  # None: not Python's, so it cannot be put back
        yield
        return
    start = _Start(before)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, start.on_sigint)
    try:
        with _pysparks_handler_noted() as wanted:
            yield
    finally:
        replaced = wanted and before in (signal.default_int_handler, signal.SIG_DFL)
        signal.signal(signal.SIGINT, wanted[-1] if replaced else before)
        start.end()
        if start.asked:
            forget_lost_jvm()
            if callable(before):
                before(signal.SIGINT, None)
            raise KeyboardInterrupt from None


class _Start:
    """One start of Spark: the handler of SIGINT meanwhile, and the thread that ends the JVM."""

    def __init__(self, before: Any) -> None:
        self.asked = False
        self._before, self._known, self._over = before, _jvms(), threading.Event()
        self._ending = threading.Thread(target=self._end_jvm, name="sparkring-interrupt", daemon=True)
        self._may_raise = False

    def on_sigint(self, number: int, frame: FrameType | None) -> None:
        """Note the signal, and have the JVM ended."""
        if self._may_raise and callable(self._before):
            self._before(number, frame)
        elif not self.asked:
            self.asked = True
            self._ending.start()

    def end(self) -> None:
        """Wait for the thread."""
        self._over.set()
        if self.asked:
            self._ending.join()

    def _end_jvm(self) -> None:
        for _ in range(round(GRACE_S / LOOK_S)):
            for process in _jvms():
                with suppress(psutil.Error):  # it has ended
                    if process not in self._known:
                        process.kill()
            if self._over.wait(LOOK_S):
                return
        self._may_raise = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def jvm_is_lost(error: BaseException) -> bool:
    """Whether Spark's start raised ``error`` because the JVM that PySpark had started is gone."""
    if "JAVA_GATEWAY_EXITED" in str(error):
        return True
    answers = not isinstance(error, Py4JError | OSError) or isinstance(error, Py4JJavaError)  # the last: Java's own error
    return not answers and _jvm_has_ended()


def forget_lost_jvm() -> None:
    """If PySpark's JVM has ended, have its next session start another one; else PySpark would call the ended one forever."""
    context = _pyspark("SparkContext")
    if _jvm_has_ended():
        context._gateway = context._jvm = context._active_spark_context = None  # noqa: SLF001 (PySpark has no other way)
        session = _pyspark("sql.SparkSession")
        session._instantiatedSession = session._activeSession = None  # noqa: SLF001


def _jvm_has_ended() -> bool:
    """Whether PySpark's JVM has ended, or does now; False if there was none."""
    process = getattr(_pyspark("SparkContext._gateway"), "proc", None)
    if process is None:
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDED_S)
    return process.poll() is not None


def _jvms() -> list[psutil.Process]:
    """The JVMs that PySpark has started in this process, and all that they and their shells have started.

    Each stands before what it has started: a shell that outlived its child for a moment would complain of that.
    """
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if child.environ().get(_MARK) not in (None, os.environ.get(_MARK)):
                found.append(child)
    return found


@contextmanager
def _pysparks_handler_noted() -> Iterator[list[Callable[..., Any]]]:
    """While the block runs, the handlers that a new SparkContext would put in place for SIGINT are listed instead."""
    module, wanted = sys.modules.get("pyspark.context"), list[Callable[..., Any]]()  # from Spark 4 on also called pyspark.core.context
    if module is None:  # a client of Connect alone
        yield wanted
        return
    module.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda _, handler: wanted.append(handler))  # type: ignore[attr-defined]
    try:
        yield wanted
    finally:
        module.signal = signal  # type: ignore[attr-defined]


def _pyspark(names: str) -> Any:
    """An attribute of ``pyspark``; None in a client of Connect alone."""
    found: Any = sys.modules.get("pyspark")
    for name in names.split("."):
        found = getattr(found, name, None)
    return found
