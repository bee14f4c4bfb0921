"""A TCP server that strangers cannot wear out: few connections at once, and each client's request whole within a time.

What every server of a ring is made of. It says nothing about who may ask for what: that is the handler's business.
"""

from __future__ import annotations

import io
import socket
import socketserver
import threading
import time
from contextlib import suppress
from typing import Any

REQUEST_TIMEOUT_S = 10.0
"""Seconds that a client may take to send all of its request, from the first byte to the last."""
MAX_HEAD_BYTES = 16 << 10
"""Bytes that a client may send before the handler has agreed to more."""
LOOK_AGAIN_S = 0.05


class GuardedServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A threading server with ``max_connections`` at once; more wait in the kernel's queue, where they cost nothing here."""

    daemon_threads = True
    request_queue_size = 1024  # ranks knock all at the same moment
    max_connections = 256

    def __init__(self, address: tuple[str, int], handler: type[socketserver.BaseRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(self.max_connections)
        self._open: set[socket.socket] = set()
        self._closing = threading.Event()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand the connection to a thread of its own, once there may be one more."""
        while not self._free.acquire(timeout=LOOK_AGAIN_S):
            if self._closing.is_set():
                self.shutdown_request(request)
                return
        self._open.add(request)
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up or sent nonsense is its own business: its rank says what is wrong, the log stays readable."""

    def shutdown(self) -> None:
        """Take no new clients."""
        self._closing.set()
        super().shutdown()

    def hang_up(self) -> None:
        """On those that are there."""
        for request in tuple(self._open):
            with suppress(OSError):  # it has gone meanwhile
                request.shutdown(socket.SHUT_RDWR)

    def _forget(self, request: Any) -> None:
        self._open.discard(request)
        self._free.release()


class GuardedHandler(socketserver.StreamRequestHandler):
    """A handler whose client has ``REQUEST_TIMEOUT_S`` and ``MAX_HEAD_BYTES`` for its request; ``allow`` gives it more bytes."""

    max_head_bytes = MAX_HEAD_BYTES

    def setup(self) -> None:
        """Put the limits between the connection and whoever reads from it."""
        super().setup()
        self.rfile.close()
        self._limits = _Limits(self.connection, num_bytes=self.max_head_bytes, within_s=REQUEST_TIMEOUT_S)
        self.rfile = io.BufferedReader(self._limits)

    def allow(self, num_bytes: int) -> None:
        """Let the client send ``num_bytes`` more."""
        self._limits.num_bytes += num_bytes


class _Limits(io.RawIOBase):
    """The reading end of a connection, until a moment and up to a number of bytes."""

    def __init__(self, connection: socket.socket, *, num_bytes: int, within_s: float) -> None:
        self._connection, self.num_bytes = connection, num_bytes
        self._until = time.monotonic() + within_s

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As files do.

        Raises:
            TimeoutError: the client was too slow.
            ConnectionAbortedError: it sent too much.
        """
        if self.num_bytes <= 0:
            raise ConnectionAbortedError("the client sent more than it may")
        left_s, own_timeout_s = self._until - time.monotonic(), self._connection.gettimeout()
        if left_s <= 0:
            raise TimeoutError("the client took too long to send its request")
        self._connection.settimeout(left_s)
        try:
            received = self._connection.recv_into(memoryview(buffer)[:self.num_bytes])
        finally:
            self._connection.settimeout(own_timeout_s)
        self.num_bytes -= received
        return received
