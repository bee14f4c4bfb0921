"""Who moves the bytes of a rank's connections: the rank's own thread while it waits for one of them, else a thread beside it.

    rank's thread     sends what a socket takes at once; while it waits, moves the bytes of all connections
    helper            sleeps at a gate, which is open only while the rank does other things and much is on its way

    helper -- sleeps at --> gate -- leads, if open, to --> sockets -- watches --> each connection

So a message that is waited for wakes one thread, and Python's lock does not change hands. Gate and sockets are epoll sets, one
within the other: the gate opens and closes by one system call, which wakes nobody.
"""

from __future__ import annotations

import math
import os
import select
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from sparkring.pipelines.parallel.transports.signals import seconds_left
from sparkring.pipelines.parallel.transports.stream import Stream

LARGE_BYTES = 1 << 16
"""As much is received while the rank does other things; less waits in the socket until the rank asks, and wakes nobody."""
MOST_EVENTS = 16
"""Connections that are looked after at a time; the default makes room for a thousand each time."""


class Pump:
    """The connections of one rank. Its thread uses them only within ``with pump``."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        """Take the connections; they are closed with the pump."""
        self._streams = {stream.fileno(): stream for stream in streams}
        self._watched = dict.fromkeys(self._streams, select.EPOLLIN)
        self._sockets, self._gate = select.epoll(), select.epoll()
        for number in self._streams:
            self._sockets.register(number, select.EPOLLIN)
        self._gate.register(self._sockets, 0)
        self._open = False
        self._ready_at = 1
        """The fewest bytes that wake who watches: the helper is not woken for less than ``LARGE_BYTES``."""
        self._moving = threading.Lock()
        self._rank_asks = False
        self._helper: threading.Thread | None = None
        self._closed = False
        self._wake: int | None = None
        self.was_woken = False
        """Whether the descriptor of ``wake_by`` could be read in some wait since this was last set to False."""

    def __enter__(self) -> Self:
        self._rank_asks = True
        self._moving.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._rank_asks = False
        try:
            for number, stream in self._streams.items():
                self._watch(number, stream)
            self._set_gate(open_it=self._is_busy())
        finally:
            self._moving.release()

    def wait(self, done: Callable[[], bool], until: float, *, look_again_s: float = math.inf) -> None:
        """Within ``with pump``: move bytes until ``done()``, asked whenever bytes moved and every ``look_again_s``. Raises LinkTimeout."""
        self._set_gate(open_it=False)
        while not done():
            self._move(min(seconds_left(until), look_again_s))

    def wake_by(self, wake: int) -> None:
        """Have waits look at this descriptor, too; whoever reads it ends that it is ready."""
        if self._wake is None:
            self._wake = wake
            self._sockets.register(wake, select.EPOLLIN)
        assert self._wake == wake, "one descriptor wakes a pump"

    def close(self) -> None:
        """Close all connections."""
        if self._closed:
            return
        with self._moving:
            self._closed = True
        if self._helper is not None:
            call = os.eventfd(1)
            self._gate.register(call, select.EPOLLIN)
            self._helper.join()  # it waits for nothing but the gate
            os.close(call)
        self._gate.close()
        self._sockets.close()
        for stream in self._streams.values():
            stream.close()

    def _is_busy(self) -> bool:
        return any(stream.is_busy for stream in self._streams.values())

    def _move(self, timeout_s: float) -> None:
        """Wait for a connection that can move bytes, and let it."""
        for number, events in self._sockets.poll(timeout_s, MOST_EVENTS):
            if number == self._wake:
                self.was_woken = True
                continue
            stream = self._streams[number]
            if events & select.EPOLLOUT:
                stream.write()
            if events & ~select.EPOLLOUT and stream.end is None:
                stream.read()
                stream.be_ready_at(self._ready_at)
            self._watch(number, stream)

    def _watch(self, number: int, stream: Stream) -> None:
        """Ask for what the connection waits for: always for bytes that come, and for room if there are bytes to send."""
        wanted = 0 if stream.end is not None else select.EPOLLIN | (select.EPOLLOUT if stream.first_departing is not None else 0)
        if wanted == self._watched[number]:
            return
        self._watched[number] = wanted
        if wanted:
            self._sockets.modify(number, wanted)
        else:
            self._sockets.unregister(number)

    def _set_gate(self, *, open_it: bool) -> None:
        """Open or close the gate. Once the helper has passed it is closed."""
        self._ready_at = LARGE_BYTES if open_it else 1
        for stream in self._streams.values():
            stream.be_ready_at(self._ready_at)
        if open_it == self._open:
            return
        self._open = open_it
        self._gate.modify(self._sockets.fileno(), select.EPOLLIN | select.EPOLLONESHOT if open_it else 0)
        if open_it and self._helper is None:
            self._helper = threading.Thread(target=self._help, name="sparkring-messages", daemon=True)
            self._helper.start()

    def _help(self) -> None:
        while True:
            self._gate.poll()
            with self._moving:
                if self._closed:
                    return
                self._move(0.0)
                wanted = self._is_busy() and not self._rank_asks
                self._open = not wanted  # the rank may have opened it again since it was passed: set it in any case
                self._set_gate(open_it=wanted)
