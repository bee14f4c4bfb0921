"""Plays the rounds of a sum over one rank's connections: sends a span while it receives another, and adds or copies as bytes come.

    socket -> piece that stays in the processor's cache -> added to the buffer          parts of a sum
    socket -> the buffer's own memory                                                   sums, unless in 16 bits

Both ends know each message's length, so nothing but values travels. Nothing here decides what a rank sends (rounds.py).
"""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress

from torch import Tensor

from sparkring.errors import DeadlinePassed, RingEnded
from sparkring.pipelines.parallel.allreduce.between import Awaited
from sparkring.pipelines.parallel.allreduce.error_feedback import ErrorFeedback
from sparkring.pipelines.parallel.allreduce.incoming import Incoming, memory_or_nothing
from sparkring.pipelines.parallel.allreduce.rounds import Round
from sparkring.pipelines.parallel.transports.signals import LinkTimeout, PeerEnded, seconds_left

AT_ONCE_BYTES = 1 << 18
"""Of a message so much is waited for before the thread wakes: woken for each packet, it takes turns from a rank that computes."""


class Exchange:
    """One rank's connections to those that it sums with. One thread at a time may use it."""

    def __init__(self, connections: Mapping[int, socket.socket], peers: Mapping[int, Awaited]) -> None:
        """Take the connections.

        Args:
            connections: Connected sockets, by the places of the ranks that they lead to.
            peers: These ranks in words, by the same places.
        """
        self._connections, self._peers = connections, peers
        self.awaited = Awaited("its own sums")
        """The rank that the last round has not heard all from, or has not given all to."""
        self._wakes_at = dict.fromkeys(connections, 1)
        for connection in connections.values():
            connection.settimeout(0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def play(self, rounds: Iterable[Round], buffer: Tensor, *, until: float = math.inf, feedback: ErrorFeedback | None = None) -> None:
        """Do a rank's part of a sum; ``buffer`` then holds it.

        Args:
            rounds: This rank's.
            buffer: Its values.
            until: When to give up, by the monotonic clock.
            feedback: Rounds what is sent.
        Raises:
            DeadlinePassed: a rank was not ready in time.
            RingEnded: a rank has ended.
        """
        if feedback is not None:
            feedback.begin(buffer)
        try:
            for each in rounds:
                leaving = _to_send(buffer, each, feedback)  # kept until it has left: the view of its memory does not
                self._transfer(each, memory_or_nothing(leaving), Incoming(buffer, each, feedback), until)
        except PeerEnded as ended:
            raise RingEnded("the sum of gradients", cause=f"{self.awaited.who} has ended, {ended.how}") from None
        except LinkTimeout:
            raise DeadlinePassed(f"a sum waited for {self.awaited.who} until the deadline; see that rank's last lines, or raise "
                                 "train.ring.deadline_s if it is only slow.", awaited=self.awaited.ranks) from None

    def interrupt(self) -> None:
        """End the connections, so that another thread that waits for them stops."""
        for connection in self._connections.values():
            with suppress(OSError):  # the other end is closed
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the sockets."""
        for connection in self._connections.values():
            connection.close()

    def _transfer(self, each: Round, outgoing: memoryview, incoming: Incoming, until: float) -> None:
        """Send and receive until both are done."""
        while outgoing or incoming.left:
            moved = 0
            if outgoing and each.to is not None:
                self.awaited = self._peers[each.to]
                moved = _send(self._connections[each.to], outgoing)
                outgoing = outgoing[moved:]
            if incoming.left and each.source is not None:
                self.awaited = self._peers[each.source]
                moved += incoming.receive(self._connections[each.source])
            if not moved:
                self._wait(each.to if outgoing else None, each.source, incoming.wanted, until)

    def _wait(self, to: int | None, source: int | None, wanted: int, until: float) -> None:
        """Wait until there is room on the way to one rank, or enough of the ``wanted`` bytes has come from another."""
        poller = select.poll()
        if to is not None:
            poller.register(self._connections[to], select.POLLOUT)
        if source is not None and wanted:
            self._wake_at(source, min(wanted, AT_ONCE_BYTES))
            poller.register(self._connections[source], select.POLLIN | (select.POLLOUT if source == to else 0))
        poller.poll(None if math.isinf(until) else seconds_left(until) * 1000)

    def _wake_at(self, source: int, least: int) -> None:
        """Have a socket wake who waits for it once so many bytes have come, or the end; Linux asks for no more than its buffer can hold."""
        if self._wakes_at[source] != least:
            self._wakes_at[source] = least
            self._connections[source].setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)


def _to_send(buffer: Tensor, each: Round, feedback: ErrorFeedback | None) -> Tensor:
    """The span as it is sent, in memory that does not change before it has left."""
    values = buffer[each.sent.first:each.sent.last]
    if feedback is not None:
        return feedback.part(values, each.sent.first) if each.adds else feedback.whole(values, each.sent.first)
    overlaps = each.adds and max(each.sent.first, each.received.first) < min(each.sent.last, each.received.last)
    return values.clone() if overlaps else values


def _send(to: socket.socket, data: memoryview) -> int:
    try:
        return to.send(data)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise PeerEnded(error.strerror or "its socket is closed") from None
