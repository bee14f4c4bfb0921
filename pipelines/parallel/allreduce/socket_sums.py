"""Sums between hosts by connections of our own, in a thread: while the backward pass computes, buffers that are full are summed.

    rank's thread   start 0 .... start 1 .... start 2 ... done 2?
    sums' thread    sum 0 [=======]sum 1 [====] sum 2 [======]         in the order of numbers, the same on all ranks

So messages need no labels, and no rank waits for a buffer that another one has not begun. DDP launches its buckets in order, too.
The deadline is kept by who waits (direct.py, hierarchical.py); a rank that ends is noticed at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import cycle

from torch import Tensor

from sparkring.pipelines.parallel.allreduce.between import Awaited
from sparkring.pipelines.parallel.allreduce.error_feedback import ErrorFeedback
from sparkring.pipelines.parallel.allreduce.exchange import Exchange
from sparkring.pipelines.parallel.allreduce.rounds import Rounds

NAP_S = 0.1
"""Seconds after which a rank that waits for a sum looks at its deadline."""


class SocketSums:
    """See SumsBetween."""

    def __init__(self, exchange: Exchange, plan: Sequence[Rounds], feedback: Sequence[ErrorFeedback | None]) -> None:
        """Start the thread.

        Args:
            exchange: This rank's connections; they are closed with the sums.
            plan: This rank's rounds for each buffer.
            feedback: Of each buffer, for sums in 16 bits.
        """
        self._exchange, self._plan, self._feedback = exchange, plan, feedback
        self._changed = threading.Condition()
        self._started: dict[int, Tensor] = {}
        self._summed: set[int] = set()
        self._error: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="sparkring-sums", daemon=True)
        self._thread.start()

    def start(self, index: int, buffer: Tensor) -> None:
        """See SumsBetween."""
        with self._changed:
            self._started[index] = buffer
            self._changed.notify_all()

    def done(self, index: int) -> bool:
        """See SumsBetween."""
        with self._changed:
            if index in self._summed:
                self._summed.remove(index)
                return True
            if self._error is not None:
                raise self._error
            return False

    def nap(self) -> None:
        """See SumsBetween."""
        with self._changed:
            if not self._summed and self._error is None:
                self._changed.wait(NAP_S)

    def awaited(self) -> Awaited:
        """See SumsBetween."""
        return self._exchange.awaited

    def close(self) -> None:
        """See SumsBetween."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._exchange.interrupt()
        self._thread.join()
        self._exchange.close()

    def _work(self) -> None:
        try:
            for index in cycle(range(len(self._plan))):
                buffer = self._next(index)
                if buffer is None:
                    return
                self._exchange.play(self._plan[index], buffer, feedback=self._feedback[index])
                with self._changed:
                    self._summed.add(index)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 (the rank's thread raises it)
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self, index: int) -> Tensor | None:
        """Wait for a buffer to be started; None once the sums are closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or index in self._started)
            return None if self._closed else self._started.pop(index)
