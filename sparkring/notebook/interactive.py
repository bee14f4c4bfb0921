"""Long jobs as a prompt and a notebook call them: they show their progress, and an interrupt ends them cleanly.

    interrupt    in ``train`` and ``retrain``    save after the current step, then raise KeyboardInterrupt; the same cell resumes
                 in another job                  cancel its Spark jobs, then raise KeyboardInterrupt
    once more                                    raise KeyboardInterrupt at once

In a program neither happens: signals and output are the program's own. In a thread, such as one of CrossValidator's, bars of several
jobs would mix and no signal is heard: there the job runs as in a program.
"""

from __future__ import annotations

import inspect
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

from sparkring.cli.terminal.console import console_progress
from sparkring.cli.terminal.interrupt import Interrupt, cancel_jobs
from sparkring.errors import Stopped
from sparkring.notebook.front_end import in_notebook
from sparkring.notebook.progress import NotebookProgress
from sparkring.spark_jobs.recovery.stop import stop_on_signals
from sparkring.spark_jobs.spark.progress import Progress


def for_caller(job: Callable[..., Any]) -> Callable[..., Any]:
    """``job`` itself in a program; ``interactive`` if Python runs a prompt or a notebook."""
    return interactive(job) if hasattr(sys, "ps1") else job


def interactive(job: Callable[..., Any]) -> Callable[..., Any]:
    """``job``, a function with ``progress`` and perhaps ``stop``; what the caller gives of these is left as it is."""
    can_save = "stop" in inspect.signature(job).parameters

    @wraps(job)
    def run(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return job(*args, **kwargs)
        kwargs = {"progress": _progress(), **kwargs}
        interrupt = Interrupt(cancel=cancel_jobs)
        try:
            with ExitStack() as handlers:
                handlers.enter_context(interrupt.handled())
                if can_save and "stop" not in kwargs:
                    kwargs["stop"] = handlers.enter_context(stop_on_signals())
                return job(*args, **kwargs)
        except Stopped as stopped:
            if stopped.signal_number != signal.SIGINT:
                raise
            raise KeyboardInterrupt(str(stopped)) from None
        except Exception as error:
            if interrupt.asked:  # a cancelled job raises too
                raise KeyboardInterrupt("interrupted") from error
            raise
    return run


def _progress() -> Progress:
    return NotebookProgress() if in_notebook() else console_progress()
