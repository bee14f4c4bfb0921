"""Plays the rounds of a sum over one rank's connections: sends a span while it receives another, and adds or copies as bytes come.

    socket -> piece that stays in the processor's cache -> added to the buffer          parts of a sum
    socket -> the buffer's own memory                                                   sums, unless in 16 bits

Both ends know each message's length, so nothing but values travels. Nothing here decides what a rank sends (rounds.py).
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from sparkring.pipelines.parallel.allreduce.error_feedback import ErrorFeedback
from sparkring.pipelines.parallel.allreduce.rounds import Round, Span
from sparkring.pipelines.parallel.transports.payload import memory_of
from sparkring.pipelines.parallel.transports.signals import PeerEnded, seconds_left

PIECE_BYTES = 1 << 20
"""As much of a message is received before it is added."""


class Exchange:
    """One rank's connections to those that it sums with. One thread at a time may use it."""

    def __init__(self, connections: Mapping[int, socket.socket]) -> None:
        """Take the connected sockets, by the places of the ranks that they lead to."""
        self._connections = connections
        self._scratch = torch.empty(PIECE_BYTES, dtype=torch.uint8)
        self.awaited: int | None = None
        """Place of the rank that the last round has not heard all from, or has not given all to."""
        for connection in connections.values():
            connection.settimeout(0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def play(self, rounds: Iterable[Round], buffer: Tensor, until: float, feedback: ErrorFeedback | None = None) -> None:
        """Do a rank's part of a sum; ``buffer`` then holds it.

        Args:
            rounds: This rank's.
            buffer: Its values.
            until: When to give up, by the monotonic clock; may be infinite.
            feedback: Rounds what is sent.
        Raises:
            LinkTimeout: a rank was not ready in time; ``awaited`` names it.
            PeerEnded: a rank has ended; ``awaited`` names it.
        """
        is_sum = False
        if feedback is not None:
            feedback.begin(buffer)
        for each in rounds:
            if feedback is not None and not each.adds and not is_sum and each.to is not None:
                _round_own(buffer, each.sent, feedback)
                is_sum = True
            leaving = _to_send(buffer, each, feedback)
            incoming = _Incoming(buffer, each, self._scratch, feedback.dtype if feedback else buffer.dtype)
            self._transfer(each, _memory(leaving), incoming, until)
        self.awaited = None

    def _transfer(self, each: Round, outgoing: memoryview, incoming: _Incoming, until: float) -> None:
        """Send and receive until both are done."""
        while outgoing or incoming.left:
            moved = 0
            if outgoing:
                assert each.to is not None
                self.awaited = each.to
                sent = _send(self._connections[each.to], outgoing)
                outgoing, moved = outgoing[sent:], sent
            if incoming.left:
                assert each.source is not None
                self.awaited = each.source
                moved += incoming.receive(self._connections[each.source])
            if not moved:
                self._wait(each if outgoing else each._replace(to=None), until, receives=bool(incoming.left))

    def _wait(self, each: Round, until: float, *, receives: bool) -> None:
        """Wait until a connection of the round can move bytes."""
        events = dict[int, int]()
        for place, event, wanted in ((each.to, select.POLLOUT, each.to is not None), (each.source, select.POLLIN, receives)):
            if wanted and place is not None:
                events[place] = events.get(place, 0) | event
        poller = select.poll()
        for place, event in events.items():
            poller.register(self._connections[place], event)
        poller.poll(None if until == float("inf") else seconds_left(until) * 1000)


class _Incoming:
    """What a round receives: bytes into pieces, pieces into the buffer."""

    def __init__(self, buffer: Tensor, each: Round, scratch: Tensor, wire: torch.dtype) -> None:
        span = each.received
        self._target, self._adds, self._wire = buffer[span.first:span.last], each.adds, wire
        self._in_place = not each.adds and wire is buffer.dtype
        self._scratch, self._filled, self._place = scratch, 0, 0
        self._memory = _memory(self._target if self._in_place else scratch)
        self.left = (span.last - span.first) * wire.itemsize
        """Bytes that have not come."""

    def receive(self, source: socket.socket) -> int:
        """Take what has come, at most a piece; returns its bytes."""
        if self._in_place:
            count = _receive(source, self._memory[self._filled:self._filled + self.left])
            self._filled += count
            self.left -= count
            return count
        wanted = min(PIECE_BYTES, self._filled + self.left)
        count = _receive(source, self._memory[self._filled:wanted])
        self._filled += count
        self.left -= count
        if self._filled == wanted:
            self._use(self._scratch[:wanted].view(self._wire))
        return count

    def _use(self, values: Tensor) -> None:
        target = self._target[self._place:self._place + len(values)]
        self._place, self._filled = self._place + len(values), 0
        if self._adds:
            target.add_(values)
        else:
            target.copy_(values)


def _to_send(buffer: Tensor, each: Round, feedback: ErrorFeedback | None) -> Tensor:
    """The span as it is sent, in memory that does not change before it has left."""
    values = buffer[each.sent.first:each.sent.last]
    if feedback is not None:
        return feedback.rounded(values, each.sent.first) if each.adds else values.to(feedback.dtype)
    overlaps = each.adds and max(each.sent.first, each.received.first) < min(each.sent.last, each.received.last)
    return values.clone() if overlaps else values


def _round_own(buffer: Tensor, span: Span, feedback: ErrorFeedback) -> None:
    """Round the sum that this rank has made, before it gives it to the others."""
    values = buffer[span.first:span.last]
    values.copy_(feedback.rounded(values, span.first))


def _memory(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor; valid while the tensor lives."""
    return memory_of(tensor) if tensor.nbytes else memoryview(b"")


def _send(to: socket.socket, data: memoryview) -> int:
    try:
        return to.send(data)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise PeerEnded(error.strerror or "its socket is closed") from None


def _receive(source: socket.socket, into: memoryview) -> int:
    try:
        count = source.recv_into(into)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise PeerEnded(error.strerror or "its socket is closed") from None
    if not count:
        raise PeerEnded("it closed its end")
    return count
