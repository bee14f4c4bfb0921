"""Two connected TCP sockets in one process."""

from __future__ import annotations

import socket

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
