"""TCP on loopback: two connected sockets in one process, and ports for servers that start later."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

LOOPBACK = "127.0.0.1"


def connected_pair(*, buffer_bytes: int | None = None) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection; with ``buffer_bytes`` little of what is sent is on its way."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        if buffer_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    if buffer_bytes is not None:
        for end in (one, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    return one, other


@contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Ports that refuse connections until a server listens on them; nobody else is given one for the length of the block.

    Each is bound and not listened on: the system then deals it to no other socket. A server that sets SO_REUSEADDR, as those in
    Python and Java do, may listen on it all the same.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((LOOPBACK, 0))
        yield [one.getsockname()[1] for one in sockets]
