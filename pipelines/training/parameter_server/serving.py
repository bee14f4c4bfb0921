"""Carrying the messages of one server: from workers on other ranks by a transport, from the worker on its own rank by a mailbox.

    workers elsewhere --- transport ---+
                                       +--> one thread: server.handle() --> answers the same way
    the worker here ------ mailbox ----+

On a rank that also computes, the thread is one beside it. A failure of the server reaches the worker here through the mailbox, and the
others by the end of their connections.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self, TypeVar

from sparkring.errors import DeadlinePassed
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.sidecar import SidecarTransport
from sparkring.pipelines.training.parameter_server.messages import Message
from sparkring.pipelines.training.parameter_server.server import Server

Said = TypeVar("Said")


class Channel(Protocol):
    """A worker's way to one server."""

    def send(self, message: Message) -> None:
        """Send; never waits."""
        ...

    def receive(self) -> Message:
        """Wait for the next answer."""
        ...


class Distant:
    """The way to a server on another rank; a Channel."""

    def __init__(self, transport: SidecarTransport, *, out: Edge, back: Edge) -> None:
        self._transport, self._out, self._back = transport, out, back

    def send(self, message: Message) -> None:
        """See Channel."""
        self._transport.send(self._out, 0, message.pack())

    def receive(self) -> Message:
        """See Channel."""
        return Message.unpack(self._transport.receive(self._back, 0))


class Mailbox:
    """The way to the server on this rank, between two threads; a Channel."""

    def __init__(self, *, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._asked, self._answered = queue.SimpleQueue[Message](), queue.SimpleQueue[Message | BaseException]()
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Can be read once a message waits for the server."""

    def send(self, message: Message) -> None:
        """See Channel."""
        self._asked.put(message)
        os.eventfd_write(self.wake, 1)

    def receive(self) -> Message:
        """See Channel; raises what ended the server."""
        found = self._taken(self._answered, "answered")
        if isinstance(found, BaseException):
            raise found
        return found

    def next(self) -> Message:
        """The server's side: wait for the next message."""
        return self._taken(self._asked, "was asked")

    def waiting(self) -> Iterator[Message]:
        """The server's side: the messages that are here."""
        os.eventfd_read(self.wake)  # first: who sends one meanwhile wakes the server again
        with suppress(queue.Empty):
            while True:
                yield self._asked.get_nowait()

    def answer(self, answer: Message | BaseException) -> None:
        """The server's side: answer the worker."""
        self._answered.put(answer)

    def close(self) -> None:
        """Let go of the descriptor."""
        os.close(self.wake)

    def _taken(self, messages: queue.SimpleQueue[Said], what: str) -> Said:
        try:
            return messages.get(timeout=self._deadline_s)
        except queue.Empty:
            raise DeadlinePassed(f"the parameter server of this rank {what} nothing for {self._deadline_s:g} s; raise "
                                 "train.ring.deadline_s if a step may take longer.") from None


class Serving:
    """One server at work during a segment. ``run`` serves in the caller's thread; as a context manager, in a thread beside it."""

    def __init__(self, server: Server, transport: SidecarTransport | None, edges: Mapping[int, tuple[Edge, Edge]], *, here: int,
                 mailbox: Mailbox | None) -> None:
        """Connect the server.

        Args:
            server: Takes the messages.
            transport: Reaches the workers on other ranks; None if there are none.
            edges: By worker, the edges from it and to it.
            here: This rank.
            mailbox: Of the worker on this rank; None if this rank only serves.
        """
        self._server, self._transport, self._edges, self._here, self._mailbox = server, transport, edges, here, mailbox
        self._workers = {source: worker for worker, (source, _) in edges.items()}
        self._thread = threading.Thread(target=self._run_beside, name="sparkring-server", daemon=True)

    def run(self) -> None:
        """Serve until all workers have said good-bye."""
        while not self._server.done:
            for worker, message in self._arrived():
                for to, answer in self._server.handle(worker, message):
                    self._answer(to, answer)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._thread.join()

    def _run_beside(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - the worker here raises it, and the others see that this server has ended
            if self._transport is not None:
                self._transport.close()
            assert self._mailbox is not None
            self._mailbox.answer(error)

    def _arrived(self) -> list[tuple[int, Message]]:
        """Wait for messages."""
        if self._transport is None:
            assert self._mailbox is not None, "a server has a worker"
            return [(self._here, self._mailbox.next())]
        found = self._transport.receive_any(list(self._workers), 0, wake=self._mailbox.wake if self._mailbox else None)
        if found is not None:
            return [(self._workers[found[0]], Message.unpack(found[1]))]
        assert self._mailbox is not None, "nobody else wakes it"
        return [(self._here, message) for message in self._mailbox.waiting()]

    def _answer(self, worker: int, answer: Message) -> None:
        if worker == self._here:
            assert self._mailbox is not None
            self._mailbox.answer(answer)
        else:
            assert self._transport is not None
            self._transport.send(self._edges[worker][1], 0, answer.pack())
