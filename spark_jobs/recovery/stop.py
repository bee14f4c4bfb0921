"""Asking a run to end early: by whoever holds the request, e.g. the handler of a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """Not asked, until somebody asks. Safe to use from a signal handler and from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""
        """Who asked, for people."""

    def ask(self, reason: str) -> None:
        """Have the run save and end after the step that it is in."""
        self.reason = self.reason or reason
        self._event.set()

    @property
    def asked(self) -> bool:
        """Whether somebody has asked."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until somebody asks; whether somebody has."""
        return self._event.wait(seconds)


@contextmanager
def stop_on_sigterm() -> Iterator[StopRequest]:
    """A request that SIGTERM makes, for the length of the block: a machine is taken away, a job is cancelled. In the main thread only."""
    request = StopRequest()
    before = signal.signal(signal.SIGTERM, lambda *_: request.ask("SIGTERM"))
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, before)
