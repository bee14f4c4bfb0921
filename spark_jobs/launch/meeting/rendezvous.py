"""The meeting point of a ring: a small HTTP key-value store through which Horovod's Gloo ranks find each other.

It serves the requests of ``horovod/common/gloo/http_store.cc``, and the tasks' status board on the same port:

    PUT    /secret:port/scope/key    keep the body
    GET    /secret:port/scope/key    the body, or 404 if no rank has put it yet (the client asks again)
    DELETE /secret:port/scope/rank   that rank has read all it needs; after its last rank a scope is removed
    PUT, GET, DELETE /secret/rank    the board (``status_board.py``): report, verdict, leave

Horovod's own server listens on every interface, takes bodies of any size from anyone and outlives the run. This one
listens only on the address that the ring uses, and accepts only the ring's own machines, and from these only requests with
the secret of the run. It has limits and is closed with the run. Horovod's client has no field for a secret, but it puts the
address unchanged before ``:port/scope/key``, so the address carries the secret (``rendezvous_address``).
It unpickles nothing: values are bytes. It uses IPv4 only, as Horovod's client does.
"""

from __future__ import annotations

import hmac
import json
import re
import socketserver
import threading
from collections.abc import Collection
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from sparkring.spark_jobs.launch.meeting.guarded_server import REQUEST_TIMEOUT_S, GuardedHandler, GuardedServer
from sparkring.spark_jobs.launch.meeting.status_board import StatusBoard

MAX_BODY_BYTES = 4 << 20
"""A rank puts 136 bytes for each other rank, so this is enough for 30,000 ranks."""
MAX_KEYS = 1 << 16
MAX_TOTAL_BYTES = 256 << 20
CONNECTIONS = 64
"""Connections that may be open at once, in addition to four for each rank."""
_PATH = re.compile(r"/([0-9A-Za-z]{1,64})(?::\d{1,5})?/(?:((?:global|local_|cross_|sparkring-)[\w.-]{0,200})/)?(\w{1,20})", re.ASCII)


def rendezvous_address(address: str, port: int, secret: str) -> str:
    """The value of ``HOROVOD_GLOO_RENDEZVOUS_ADDR`` with which Horovod's client finds the server and sends the secret.

    The client asks ``http://<value>:<HOROVOD_GLOO_RENDEZVOUS_PORT>/scope/key`` and takes the text before the first slash
    as host and port. Source: horovod/common/gloo/http_store.h and third_party/HTTPRequest, 0.28.1.
    """
    return f"{address}:{port}/{secret}"


class KeyValueStore:
    """Scopes of keys and bytes, with limits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scopes: dict[str, dict[str, bytes]] = {}
        self._finished: dict[str, set[str]] = {}
        self._num_keys = self._num_bytes = 0

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Keep ``value``; returns False if the store is full."""
        with self._lock:
            old = self._scopes.get(scope, {}).get(key)
            num_keys = self._num_keys + (old is None)
            num_bytes = self._num_bytes + len(value) - len(old or b"")
            if num_keys > MAX_KEYS or num_bytes > MAX_TOTAL_BYTES:
                return False
            self._num_keys, self._num_bytes = num_keys, num_bytes
            self._scopes.setdefault(scope, {})[key] = value
            self._finished.setdefault(scope, set()).discard(key)
            return True

    def get(self, scope: str, key: str) -> bytes | None:
        """The value, or None."""
        with self._lock:
            return self._scopes.get(scope, {}).get(key)

    def finish(self, scope: str, rank: str) -> None:
        """Note that ``rank`` has finished with ``scope``; after its last rank, forget the scope.

        Each rank puts two values, under ``rank_0`` and under ``0``, and deletes the second. Both are kept, since a slower
        rank may not have read them yet. All ranks have put theirs by then, so the ranks that still read are known.
        """
        with self._lock:
            keys = self._scopes.get(scope, {})
            finished = self._finished.get(scope, set())
            if rank in keys:
                finished.add(rank)
            if finished and finished == {key for key in keys if key.isdecimal()}:
                del self._scopes[scope], self._finished[scope]
                self._num_keys -= len(keys)
                self._num_bytes -= sum(map(len, keys.values()))


class Rendezvous(GuardedServer, HTTPServer):
    """The server; ``board.secret`` is its secret. It listens once it is made, so its port is known, and answers after ``start``."""

    def __init__(self, address: str, board: StatusBoard) -> None:
        self.store, self.board = KeyValueStore(), board
        self.max_connections = CONNECTIONS + 4 * board.size
        self._allowed: frozenset[str] = frozenset()
        self._thread: threading.Thread | None = None
        super().__init__((address, 0), _Handler)

    @property
    def port(self) -> int:
        """The port that the system gave."""
        return int(self.server_address[1])

    def start(self, *, allowed: Collection[str]) -> None:
        """Start to answer clients at the addresses ``allowed``, and no others."""
        self._allowed = frozenset(allowed)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, close all connections, and free the port."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
            self.hang_up()
        self.server_close()

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of the machine's name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.port

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept only the ring's machines; other connections are closed before a byte is read."""
        return client_address[0] in self._allowed


class _Handler(GuardedHandler, BaseHTTPRequestHandler):
    server: Rendezvous
    server_version, sys_version = "sparkring", ""
    timeout = REQUEST_TIMEOUT_S  # for the answer

    def do_GET(self) -> None:
        path = self._path()
        if path is None:
            return
        scope, key = path
        if scope is None:
            self._send_verdict(key)
        else:
            value = self.server.store.get(scope, key)
            self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        path = self._path()
        if path is None:
            return
        scope, key = path
        body = self._body()
        if body is None:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif scope is None:
            self._report(key, body)
        else:
            self._answer(HTTPStatus.OK if self.server.store.put(scope, key, body) else HTTPStatus.INSUFFICIENT_STORAGE)

    def do_DELETE(self) -> None:
        path = self._path()
        if path is None:
            return
        scope, key = path
        if scope is not None:
            self.server.store.finish(scope, key)
        elif key.isdecimal():
            self.server.board.leave(int(key))
        self._answer(HTTPStatus.OK)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (named by http.server)
        """Log no requests."""

    def _send_verdict(self, rank: str) -> None:
        try:
            verdict = self.server.board.verdict(int(rank))
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST)
        else:
            self._answer(HTTPStatus.OK, verdict.to_json())

    def _report(self, rank: str, body: bytes) -> None:
        try:
            severity = json.loads(body)
            order = self.server.board.report(int(rank), severity=None if severity is None else int(severity))
        except (TypeError, ValueError):
            self._answer(HTTPStatus.BAD_REQUEST)
        else:
            self._answer(HTTPStatus.OK, str(order).encode())

    def _path(self) -> tuple[str | None, str] | None:
        """Scope and key; the scope is None for the board. A request that is not for this ring is refused; the result is None."""
        match = _PATH.fullmatch(self.path)
        if match is None:
            self._answer(HTTPStatus.BAD_REQUEST)
        elif not hmac.compare_digest(match.group(1).encode(), self.server.board.secret.encode()):
            self._answer(HTTPStatus.FORBIDDEN)
        else:
            return match.group(2), match.group(3)
        return None

    def _body(self) -> bytes | None:
        """The body, or None if its length is missing, not a number or over the limit, or if the body is cut short."""
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,9}", length, re.ASCII) or int(length) > MAX_BODY_BYTES:
            return None
        self.allow(int(length))
        body = self.rfile.read(int(length))
        return body if len(body) == int(length) else None

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
