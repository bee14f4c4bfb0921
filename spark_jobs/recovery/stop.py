"""A request to save and end early, made by a signal's handler or another thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sparkring.errors import Stopped


class StopRequest:
    """Whether a run was asked to stop. Safe to use from a signal handler and from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""
        """The source of the request, for messages."""
        self.signal_number: int = signal.SIGTERM
        """The signal that asked; SIGTERM if none did."""

    def ask(self, reason: str, *, signal_number: int = signal.SIGTERM) -> None:
        """Have the run save and end after its current step; the first to ask is named."""
        if not self.reason:
            self.reason, self.signal_number = reason, signal_number
        self._event.set()

    def require_none(self) -> None:
        """Check that no one has asked while there are no ranks that could save.

        Raises:
            Stopped: someone has.
        """
        if self.asked:
            raise Stopped(f"stopped as asked ({self.reason}) before ranks were started; the same command resumes from the last checkpoint.",
                          signal_number=self.signal_number)

    @property
    def asked(self) -> bool:
        """Whether anyone has asked."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until someone asks, at most ``seconds``; returns whether someone has asked."""
        return self._event.wait(seconds)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """A request that SIGTERM and Ctrl-C make while the block runs; a second Ctrl-C is handled as before. In the main thread only."""
    request = StopRequest()

    def on_sigint(number: int, frame: FrameType | None) -> None:
        if not request.asked:
            request.ask("Ctrl-C", signal_number=number)
        elif callable(sigint_before):
            sigint_before(number, frame)

    sigint_before = signal.getsignal(signal.SIGINT)
    sigterm_before = signal.signal(signal.SIGTERM, lambda *_: request.ask("SIGTERM"))
    if sigint_before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, on_sigint)
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, sigterm_before)
        signal.signal(signal.SIGINT, sigint_before)
