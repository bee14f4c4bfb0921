"""The ring's meeting point: what Horovod's client needs of it, and what it refuses to everybody else."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from sparkring.spark_jobs.launch.meeting.hosts import LOOPBACK
from sparkring.spark_jobs.launch.meeting.rendezvous import KeyValueStore, Rendezvous, rendezvous_address
from sparkring.spark_jobs.launch.meeting.status_board import StatusBoard
from tests.support import seams
from tests.support.cell import listening_on

SECRET = "0123456789abcdef0123456789abcdef"
OPEN = f"/{SECRET}:1"
"""How the path of a request of Horovod's begins."""


@pytest.fixture
def server() -> Iterator[Rendezvous]:
    running = Rendezvous(LOOPBACK, StatusBoard(SECRET, size=2, heartbeat_s=0.05))
    running.start(allowed=[LOOPBACK])
    try:
        yield running
    finally:
        running.close()


def ask(server: Rendezvous, method: str, path: str, body: bytes | None = None, *, source: str = LOOPBACK) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=5, source_address=(source, 0))
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def raw(server: Rendezvous, request: bytes) -> bytes:
    """Send bytes as they are, and read until the server hangs up."""
    with socket.create_connection((LOOPBACK, server.port), timeout=5) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_a_value_is_there_once_it_was_put(server: Rendezvous) -> None:
    assert ask(server, "GET", f"{OPEN}/global/0") == (404, b"")
    assert ask(server, "PUT", f"{OPEN}/global/0", b"\x00address\xff")[0] == 200
    assert ask(server, "GET", f"{OPEN}/global/0") == (200, b"\x00address\xff")
    assert ask(server, "GET", f"{OPEN}/local_host-0/0")[0] == 404


def test_horovod_s_client_brings_the_secret_in_the_address_it_is_given(server: Rendezvous) -> None:
    ask(server, "PUT", f"{OPEN}/global/0", b"kept")
    url = f"http://{rendezvous_address(LOOPBACK, server.port, SECRET)}:{server.port}/global/0"  # http_store.h makes its URLs so
    host, _, path = url.removeprefix("http://").partition("/")  # and HTTPRequest.hpp cuts them so
    assert host == f"{LOOPBACK}:{server.port}"
    assert ask(server, "GET", f"/{path}") == (200, b"kept")


def test_a_scope_goes_when_the_last_rank_is_through_with_it(server: Rendezvous) -> None:
    keys = ("rank_0", "rank_1", "0", "1")  # what two ranks put
    for key in keys:
        ask(server, "PUT", f"{OPEN}/global/{key}", key.encode())
    assert ask(server, "DELETE", f"{OPEN}/global/0")[0] == 200
    assert [ask(server, "GET", f"{OPEN}/global/{key}")[0] for key in keys] == [200] * 4  # rank 1 may not have read them yet
    ask(server, "PUT", f"{OPEN}/cross_0/0", b"")
    ask(server, "DELETE", f"{OPEN}/cross_0/0")  # a scope of one goes at once, and no other with it
    ask(server, "DELETE", f"{OPEN}/global/1")
    assert [ask(server, "GET", f"{OPEN}/global/{key}")[0] for key in keys] == [404] * 4  # or a second hvd.init would find the first's


def test_it_listens_on_the_given_address_only_and_on_none_once_closed(server: Rendezvous) -> None:
    assert listening_on(server.port) == [LOOPBACK]
    server.close()
    assert listening_on(server.port) == []


def test_a_foreign_address_is_hung_up_on(server: Rendezvous) -> None:
    ask(server, "PUT", f"{OPEN}/global/0", b"kept")
    with pytest.raises((http.client.BadStatusLine, ConnectionError)):
        ask(server, "DELETE", f"{OPEN}/global/0", source="127.0.0.2")
    assert ask(server, "GET", f"{OPEN}/global/0") == (200, b"kept")


@pytest.mark.parametrize("opening", ["", f"/{SECRET[:-1]}0:1", f"/{SECRET[:-1]}:1", f"/{SECRET.upper()}:1", "/x:1"])
def test_who_does_not_know_the_secret_gets_and_changes_nothing(server: Rendezvous, opening: str) -> None:
    ask(server, "PUT", f"{OPEN}/global/0", b"kept")
    answers = [ask(server, method, f"{opening}/global/0", body) for method, body in (("GET", None), ("PUT", b"poison"), ("DELETE", None))]
    assert {status for status, _ in answers} <= {400, 403}
    assert [body for _, body in answers] == [b""] * 3
    assert ask(server, "GET", f"{OPEN}/global/0") == (200, b"kept")


def test_a_body_is_not_read_before_its_sender_has_shown_the_secret(server: Rendezvous) -> None:
    assert b"403" in raw(server, b"PUT /wrong:1/global/0 HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")  # and no byte of it


@pytest.mark.parametrize(("request_line", "status"), [
    pytest.param(f"POST {OPEN}/global/0", b"501", id="another method"),
    pytest.param(f"GET {OPEN}/global/", b"400", id="no key"),
    pytest.param(f"GET {OPEN}/global/0/1", b"400", id="too deep"),
    pytest.param(f"GET {OPEN}/worker_addresses/0", b"400", id="a scope of elastic Horovod"),
    pytest.param(f"GET {OPEN}/global/{'0' * 30}", b"400", id="a long key"),
    pytest.param(f"PUT {OPEN}/global/0", b"413", id="no length"),
    pytest.param(f"PUT {OPEN}/global/0 HTTP/1.1\r\nContent-Length: 99999999", b"413", id="more than a body may have"),
    pytest.param(f"PUT {OPEN}/global/0 HTTP/1.1\r\nContent-Length: -1", b"413", id="a negative length"),
])
def test_what_horovod_does_not_ask_is_refused(server: Rendezvous, request_line: str, status: bytes) -> None:
    line = request_line if "HTTP" in request_line else f"{request_line} HTTP/1.1"
    assert status in raw(server, f"{line}\r\n\r\n".encode()).splitlines()[0]


def test_a_body_that_does_not_come_whole_is_not_kept(server: Rendezvous) -> None:
    with socket.create_connection((LOOPBACK, server.port), timeout=5) as connection:
        connection.sendall(f"PUT {OPEN}/global/0 HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf".encode())
        connection.shutdown(socket.SHUT_WR)
        connection.recv(4096)
    assert ask(server, "GET", f"{OPEN}/global/0")[0] == 404


@pytest.mark.parametrize("drip", [b"X: y\r\n", b"."], ids=["a head without end", "a slow body"])
def test_a_client_has_so_long_for_its_request_and_no_longer_by_sending_a_little_of_it(
        server: Rendezvous, monkeypatch: pytest.MonkeyPatch, drip: bytes) -> None:
    monkeypatch.setattr(seams.GUARDED_SERVER_REQUEST_TIMEOUT_S, 0.3)
    with socket.create_connection((LOOPBACK, server.port), timeout=0.02) as connection:
        connection.sendall(f"PUT {OPEN}/global/0 HTTP/1.1\r\nContent-Length: 100000\r\n".encode() + (b"" if b":" in drip else b"\r\n"))
        assert any(hung_up(connection, drip) for _ in range(200))  # each waits 0.02 s at most for the end, so 4 s are enough
    assert ask(server, "GET", f"{OPEN}/global/0")[0] == 404


def hung_up(connection: socket.socket, drip: bytes) -> bool:
    """Send a little more, and see whether the other side is still there."""
    try:
        connection.sendall(drip)
        return connection.recv(4096) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_head_has_a_limit(server: Rendezvous) -> None:
    with socket.create_connection((LOOPBACK, server.port), timeout=5) as connection, pytest.raises(OSError, match=r"reset|pipe|aborted"):
        for _ in range(200_000):  # far more than the system keeps on the way
            connection.sendall(b"X-Header: " + b"y" * 1000 + b"\r\n")


def test_more_clients_than_there_may_be_wait_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.RENDEZVOUS_CONNECTIONS, 0)  # four for the one rank are left
    monkeypatch.setattr(seams.GUARDED_SERVER_REQUEST_TIMEOUT_S, 0.2)
    server = Rendezvous(LOOPBACK, StatusBoard(SECRET, size=1, heartbeat_s=0.05))
    server.start(allowed=[LOOPBACK])
    before = threading.active_count()
    idle = [socket.create_connection((LOOPBACK, server.port), timeout=5) for _ in range(16)]
    try:
        assert ask(server, "GET", f"{OPEN}/global/0")[0] == 404  # served once those before it were given up
        assert threading.active_count() <= before + 4
    finally:
        for connection in idle:
            connection.close()
        server.close()


def test_closing_hangs_up_on_whoever_is_there(server: Rendezvous) -> None:
    with socket.create_connection((LOOPBACK, server.port), timeout=5) as connection:
        connection.sendall(b"GET ")
        ask(server, "GET", f"{OPEN}/global/0")  # by now the first one has been taken in too
        server.close()
        assert connection.recv(1) == b""


def test_the_board_is_open_to_those_who_know_the_secret_only(server: Rendezvous) -> None:
    assert ask(server, "PUT", f"/{SECRET}/1", b"0") == (200, b"0")
    assert ask(server, "GET", f"/{SECRET}/0") == (200, b'{"kind": "end", "severity": 0}')
    assert ask(server, "GET", f"/{SECRET[:-1]}0/0")[0] == 403
    assert ask(server, "PUT", f"/{SECRET}/7", b"0")[0] == 400
    assert ask(server, "PUT", f"/{SECRET}/1", b"[]")[0] == 400


def test_the_store_is_full_at_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.RENDEZVOUS_MAX_KEYS, 3)
    monkeypatch.setattr(seams.RENDEZVOUS_MAX_TOTAL_BYTES, 10)
    store = KeyValueStore()
    assert [store.put("a", key, b"four") for key in ("0", "1", "2")] == [True, True, False]  # 12 bytes would be too many
    assert store.put("a", "1", b"sixsix")  # in place of the old value
    assert [store.put("b", key, b"") for key in ("0", "1")] == [True, False]  # 3 keys are all it takes
    store.finish("b", "0")
    assert store.put("b", "1", b"")
