"""Ranks that train apart stay alive for each other: a thread answers for the one that computes, until all have come to the exchange.

    rank 0    step, step, step, step, step, ------------------------- here    exchange
              here? no             here? no         here? yes
    rank 1    step, step, step, step, step, step, step, step, step, - here    exchange
              here? no             here? no         here? no          yes

So a rank may be later than another by more than the ring's deadline, and one that stands still or has ended is noticed within it. Asking
costs a sum of one number in each exchange. Where no rank needed long the last time, nobody asks, and the exchange itself waits.
"""

from __future__ import annotations

import threading
import time
from functools import partial

from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.keepalive import in_thread, wait_keeping_alive

LONG_SHARE = 1 / 8
"""Of the ring's deadline: the seconds between two exchanges from which ranks ask each other."""


class Apart:
    """One rank's time between two exchanges. Nothing else may use the communicator in it."""

    def __init__(self, communicator: Communicator, *, first_step: int, asks: bool) -> None:
        """Begin, on all ranks with the same step; ``asks``: whether they ask each other, all or none."""
        self.first_step = first_step
        self._began, self._long_s = time.monotonic(), LONG_SHARE * communicator.context.deadline_s
        self._here = threading.Event()
        self._others = in_thread(partial(wait_keeping_alive, communicator, self._here.wait, name="apart"),
                                 name="sparkring-apart") if asks else None

    @property
    def is_long(self) -> bool:
        """Whether the ranks should ask each other the next time."""
        return time.monotonic() - self._began > self._long_s

    def check(self) -> None:
        """Raise what has happened to another rank, if anything has."""
        if self._others is not None and self._others.done():
            self._others.result()

    def meet(self) -> None:
        """Wait for all ranks.

        Raises:
            DeadlinePassed: a rank does not answer.
        """
        self._here.set()
        if self._others is not None:
            self._others.result()
