"""Sums between hosts by connections of our own, in a thread: while the backward pass computes, buffers that are full are summed.

    rank's thread   start 0 .... start 1 .... start 2 ... done 2?
    sums' thread    sum 0 [=======]sum 1 [====] sum 2 [======]         in the order of numbers, the same on all ranks

So messages need no labels, and no rank waits for a buffer that another one has not begun. DDP launches its buckets in order, too.
The deadline is kept by who waits (direct.py, hierarchical.py); a rank that ends is noticed at once.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle

from torch import Tensor

from sparkring.errors import RingEnded
from sparkring.pipelines.parallel.allreduce.between import Awaited
from sparkring.pipelines.parallel.allreduce.error_feedback import ErrorFeedback
from sparkring.pipelines.parallel.allreduce.exchange import Exchange
from sparkring.pipelines.parallel.allreduce.rounds import Rounds
from sparkring.pipelines.parallel.transports.signals import PeerEnded

FOREVER = float("inf")
NAP_S = 0.1
"""Seconds after which a rank that waits for a sum looks at its deadline."""


class SocketSums:
    """See SumsBetween."""

    def __init__(self, connections: dict[int, socket.socket], names: Sequence[str], plan: Sequence[Rounds], *,
                 feedback: Sequence[ErrorFeedback | None]) -> None:
        """Take the connections and start the thread.

        Args:
            connections: Connected sockets by the places of the ranks that they lead to.
            names: Each place's rank and host in words, after its number: ``2 on beta``.
            plan: This rank's rounds for each buffer.
            feedback: Of each buffer, for sums in 16 bits.
        """
        self._connections, self._names, self._plan, self._feedback = connections, names, plan, feedback
        self._exchange = Exchange(connections)
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
        place = self._exchange.awaited
        if place is None:
            return Awaited("its own thread")
        return Awaited(f"rank {self._names[place]}", (int(self._names[place].split()[0]),))

    def close(self) -> None:
        """See SumsBetween."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for connection in self._connections.values():
            with suppress(OSError):  # the other end is closed
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread, if it waits for a rank
        self._thread.join()
        for connection in self._connections.values():
            connection.close()

    def _work(self) -> None:
        try:
            for index in cycle(range(len(self._plan))):
                buffer = self._next(index)
                if buffer is None:
                    return
                self._exchange.play(self._plan[index], buffer, FOREVER, self._feedback[index])
                with self._changed:
                    self._summed.add(index)
                    self._changed.notify_all()
        except PeerEnded as ended:
            self._fail(RingEnded("the sum of gradients", cause=f"{self.awaited().who} has ended, {ended.how}"))
        except Exception as error:  # noqa: BLE001 (the rank's thread raises it)
            self._fail(error)

    def _next(self, index: int) -> Tensor | None:
        """Wait for a buffer to be started; None once the sums are closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or index in self._started)
            return None if self._closed else self._started.pop(index)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
