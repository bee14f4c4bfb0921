"""Connecting ranks by TCP: one connection per pair of ranks that share an edge, for ``SocketLink``, or that sum (parallel/allreduce).

    each rank      listens on the ring's interface (on loopback, if all ranks are on one host) until its peers are connected
    higher rank    connects to the lower one; each proves to the other that it knows the ring's key (handshake.py)

Rank 0 draws the key, and the ring's own operations give it to the others. Strangers are disconnected. They delay nobody: a rank listens
to all that have connected at once.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import psutil

from sparkring.errors import EnvironmentProblem
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.handshake import ANSWER_BYTES, KEY_BYTES, Caller, Guest, Stranger
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.pump import Pump
from sparkring.pipelines.parallel.transports.sockets import SocketLink
from sparkring.pipelines.parallel.transports.stream import Stream

LOOPBACK = "127.0.0.1"
MOST_GUESTS = 64
"""Connections, beyond one per awaited rank, that may be open without having proved who they are; of more, the oldest is closed."""


def open_socket_links(communicator: Communicator, edges: Sequence[Edge]) -> dict[int, SocketLink]:
    """Connect this rank with those with which it shares an edge. Every rank of the ring calls this.

    Args:
        communicator: The joined ring.
        edges: The edges that go by sockets, of all ranks.
    Returns:
        The links by rank.
    Raises:
        EnvironmentProblem: see ``open_connections``.
    """
    context = communicator.context
    mine = [edge for edge in edges if context.rank in edge[:2]]
    connected = open_connections(communicator, {rank for edge in mine for rank in edge[:2]} - {context.rank})
    streams = {peer: Stream(connection, pinned=context.device != "cpu") for peer, connection in connected.items()}
    pump = Pump(list(streams.values()))
    return {peer: SocketLink(stream, pump, [edge for edge in mine if peer in edge[:2]]) for peer, stream in streams.items()}


def open_connections(communicator: Communicator, peers: Collection[int]) -> dict[int, socket.socket]:
    """Connect this rank with others. Every rank of the ring calls this, maybe without peers.

    Args:
        communicator: The joined ring.
        peers: The others, each of which has this rank among its own.
    Returns:
        The connected sockets by rank.
    Raises:
        EnvironmentProblem: ranks cannot reach each other; or there are several hosts, and HOROVOD_GLOO_IFACE names no interface.
    """
    context = communicator.context
    key = communicator.broadcast_bytes(secrets.token_bytes(KEY_BYTES), name="sockets.key")
    address = _address() if len(set(context.hosts)) > 1 else LOOPBACK
    with socket.create_server((address, 0), backlog=context.size + MOST_GUESTS) as listener:
        own = f"{address}:{listener.getsockname()[1]}"
        places = [place.decode() for place in communicator.gather_bytes(own.encode(), name="sockets.places")]
        until = time.monotonic() + context.deadline_s / 2  # the other half is for telling the others
        connected, problem = dict[int, socket.socket](), ""
        try:
            for peer in sorted(peers):
                if peer < context.rank:
                    connected[peer] = connect(places[peer], Caller(key, rank=context.rank, host=peer), until)
            with Reception(listener, key, context.rank) as reception:
                connected |= reception.receive([peer for peer in peers if peer > context.rank], until)
        except ConnectionError as error:
            problem = f"rank {context.rank} on {socket.gethostname()} ({own}) {error}"
        problems = [said.decode() for said in communicator.gather_bytes(problem.encode(), name="sockets.connected") if said]
    if problems:
        for connection in connected.values():
            connection.close()
        raise EnvironmentProblem(f"{problems[0]}; let the ranks' hosts reach each other on all ports of the ring's network, or set "
                                 "HOROVOD_GLOO_IFACE to an interface on which they do.")
    return connected


def connect(place: str, caller: Caller, until: float) -> socket.socket:
    """A connection to the rank that listens at ``place``, once both have proved who they are.

    Raises:
        ConnectionError: that failed; the message follows the name of this rank.
    """
    address, _, port = place.rpartition(":")
    connection = None
    try:
        connection = socket.create_connection((address, int(port)), timeout=max(0.1, until - time.monotonic()))
        connection.sendall(caller.hello)
        answer = b""
        while len(answer) < ANSWER_BYTES:
            connection.settimeout(max(0.1, until - time.monotonic()))
            more = connection.recv(ANSWER_BYTES - len(answer))
            if not more:
                raise ConnectionResetError("it hung up")
            answer += more
        connection.sendall(caller.reply(answer))
    except (OSError, Stranger) as error:
        if connection is not None:
            connection.close()
        why = "something else answers there" if isinstance(error, Stranger) else getattr(error, "strerror", None) or str(error)
        raise ConnectionError(f"cannot connect to rank {caller.host} at {place} ({why})") from None
    return connection


class Reception:
    """Those who have connected to this rank. Use it as a context manager: who has not proved who they are is disconnected at the end."""

    def __init__(self, listener: socket.socket, key: bytes, rank: int) -> None:
        """Take the listening socket, the ring's key, and this rank's number."""
        listener.settimeout(0)
        self._listener, self._key, self._rank = listener, key, rank
        self._guests: dict[socket.socket, Guest] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for connection in list(self._guests):
            self._let_go(connection).close()
        self._selector.close()

    def receive(self, peers: Collection[int], until: float) -> dict[int, socket.socket]:
        """The connections of ``peers``, once all have come.

        Raises:
            ConnectionError: some did not come in time; the message follows the name of this rank.
        """
        met: dict[int, socket.socket] = {}
        while len(met) < len(peers):
            left = until - time.monotonic()
            if left <= 0:
                for connection in met.values():
                    connection.close()
                raise ConnectionError(f"was not reached by rank {min(set(peers) - set(met))}")
            for ready, _ in self._selector.select(left):
                if ready.fileobj is self._listener:
                    self._welcome(MOST_GUESTS + len(peers))
                elif isinstance(ready.fileobj, socket.socket) and ready.fileobj in self._guests:
                    self._hear(ready.fileobj, set(peers) - set(met), met)
        return met

    def _welcome(self, most: int) -> None:
        with suppress(OSError):  # it has gone again
            connection, _ = self._listener.accept()
            connection.settimeout(0)
            self._guests[connection] = Guest(self._key, host=self._rank)
            self._selector.register(connection, selectors.EVENT_READ)
        if len(self._guests) > most:
            self._let_go(next(iter(self._guests))).close()

    def _hear(self, connection: socket.socket, missing: Collection[int], met: dict[int, socket.socket]) -> None:
        guest = self._guests[connection]
        try:
            said = connection.recv(guest.missing_bytes)
            if said:
                connection.sendall(guest.hear(said))
        except (OSError, Stranger):
            said = b""
        if not said or (guest.missing_bytes == 0 and guest.rank not in missing):
            self._let_go(connection).close()
        elif guest.missing_bytes == 0:
            met[guest.rank] = self._let_go(connection)

    def _let_go(self, connection: socket.socket) -> socket.socket:
        del self._guests[connection]
        self._selector.unregister(connection)
        return connection


def _address() -> str:
    """The IPv4 address of the interface by which Horovod reaches other hosts."""
    name = os.environ.get("HOROVOD_GLOO_IFACE", "")
    found = [entry.address for entry in psutil.net_if_addrs().get(name, []) if entry.family == socket.AF_INET]
    if not found:
        raise EnvironmentProblem(f"HOROVOD_GLOO_IFACE={name} names no interface with an IPv4 address on {socket.gethostname()}, "
                                 "and ranks are on several hosts; set it to the interface by which they reach each other.")
    return found[0]
