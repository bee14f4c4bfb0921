"""A TCP server that strangers cannot overload: it limits the connections, and the time and the size of each request.

Every server of a ring is one. It does not authenticate clients; its handlers do.
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
    request_queue_size = 1024  # all ranks connect at the same moment
    max_connections = 256

    def __init__(self, address: tuple[str, int], handler: type[socketserver.BaseRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(self.max_connections)
        self._open: set[socket.socket] = set()
        self._closing = threading.Event()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Wait until fewer than ``max_connections`` are open, then serve the connection in a thread of its own."""
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
        """Log nothing: the rank behind a client that hung up or sent nonsense reports its error itself."""

    def shutdown(self) -> None:
        """Accept no more clients."""
        self._closing.set()
        super().shutdown()

    def hang_up(self) -> None:
        """Close the connections of all clients."""
        for request in tuple(self._open):
            with suppress(OSError):  # the client has gone meanwhile
                request.shutdown(socket.SHUT_RDWR)

    def _forget(self, request: Any) -> None:
        self._open.discard(request)
        self._free.release()


class GuardedHandler(socketserver.StreamRequestHandler):
    """A handler whose client has ``REQUEST_TIMEOUT_S`` and ``MAX_HEAD_BYTES`` for its request; ``allow`` gives it more bytes."""

    max_head_bytes = MAX_HEAD_BYTES

    def setup(self) -> None:
        """Read the connection through the limits."""
        super().setup()
        self.rfile.close()
        self._limits = _Limits(self.connection, num_bytes=self.max_head_bytes, within_s=REQUEST_TIMEOUT_S)
        self.rfile = io.BufferedReader(self._limits)

    def allow(self, num_bytes: int) -> None:
        """Let the client send ``num_bytes`` more."""
        self._limits.num_bytes += num_bytes


class _Limits(io.RawIOBase):
    """The reading end of a connection, limited in time and in bytes."""

    def __init__(self, connection: socket.socket, *, num_bytes: int, within_s: float) -> None:
        self._connection, self.num_bytes = connection, num_bytes
        self._until = time.monotonic() + within_s

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer``, as files do.

        Raises:
            TimeoutError: the client was too slow.
            ConnectionAbortedError: the client sent too much.
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
