"""The ring's meeting point: what Horovod's client needs of it, and what it refuses to everybody else."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import psutil
import pytest

from sparkring.spark_jobs.launch import rendezvous
from sparkring.spark_jobs.launch.board import Board
from sparkring.spark_jobs.launch.hosts import LOOPBACK
from sparkring.spark_jobs.launch.rendezvous import KeyValueStore, Rendezvous

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def server() -> Iterator[Rendezvous]:
    running = Rendezvous(LOOPBACK, Board(TOKEN, size=2, heartbeat_s=0.05))
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
    assert ask(server, "GET", "/global_/0") == (404, b"")
    assert ask(server, "PUT", "/global_/0", b"\x00address\xff")[0] == 200
    assert ask(server, "GET", "/global_/0") == (200, b"\x00address\xff")
    assert ask(server, "GET", "/local_host-0/0")[0] == 404


def test_a_scope_goes_when_the_last_rank_is_through_with_it(server: Rendezvous) -> None:
    keys = ("rank_0", "rank_1", "0", "1")  # what two ranks put
    for key in keys:
        ask(server, "PUT", f"/global_/{key}", key.encode())
    assert ask(server, "DELETE", "/global_/0")[0] == 200
    assert [ask(server, "GET", f"/global_/{key}")[0] for key in keys] == [200] * 4  # rank 1 may not have read them yet
    ask(server, "DELETE", "/global_/1")
    assert [ask(server, "GET", f"/global_/{key}")[0] for key in keys] == [404] * 4  # or a second hvd.init would find the first's


def test_it_listens_on_the_given_address_only_and_on_none_once_closed(server: Rendezvous) -> None:
    def listening() -> list[str]:
        return [connection.laddr.ip for connection in psutil.Process().net_connections("tcp")
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == server.port]

    assert listening() == [LOOPBACK]
    server.close()
    assert listening() == []


def test_a_foreign_address_is_hung_up_on(server: Rendezvous) -> None:
    ask(server, "PUT", "/global_/0", b"kept")
    with pytest.raises((http.client.BadStatusLine, ConnectionError)):
        ask(server, "DELETE", "/global_/0", source="127.0.0.2")
    assert ask(server, "GET", "/global_/0") == (200, b"kept")


@pytest.mark.parametrize(("request_line", "status"), [
    pytest.param("POST /global_/0", b"501", id="another method"),
    pytest.param("GET /global_", b"400", id="no key"),
    pytest.param("GET /global_/0/1", b"400", id="too deep"),
    pytest.param("PUT /global_/0", b"413", id="no length"),
    pytest.param("PUT /global_/0 HTTP/1.1\r\nContent-Length: 99999999", b"413", id="more than a body may have"),
    pytest.param("PUT /global_/0 HTTP/1.1\r\nContent-Length: -1", b"413", id="a negative length"),
])
def test_what_horovod_does_not_ask_is_refused(server: Rendezvous, request_line: str, status: bytes) -> None:
    line = request_line if "HTTP" in request_line else f"{request_line} HTTP/1.1"
    assert status in raw(server, f"{line}\r\n\r\n".encode()).splitlines()[0]


def test_a_body_that_does_not_come_whole_is_not_kept(server: Rendezvous) -> None:
    with socket.create_connection((LOOPBACK, server.port), timeout=5) as connection:
        connection.sendall(b"PUT /global_/0 HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf")
        connection.shutdown(socket.SHUT_WR)
        connection.recv(4096)
    assert ask(server, "GET", "/global_/0")[0] == 404


def test_the_board_is_open_to_those_who_know_the_token_only(server: Rendezvous) -> None:
    assert ask(server, "PUT", f"/{TOKEN}/1", b"0") == (200, b"0")
    assert ask(server, "GET", f"/{TOKEN}/verdict") == (200, b'{"kind": "stop", "severity": 0}')
    assert ask(server, "GET", f"/{TOKEN[:-1]}0/verdict")[0] == 404
    assert ask(server, "PUT", f"/{TOKEN}/7", b"0")[0] == 400
    assert ask(server, "PUT", f"/{TOKEN}/1", b"[]")[0] == 400


def test_the_store_is_full_at_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MAX_KEYS", 3)
    monkeypatch.setattr(rendezvous, "MAX_TOTAL_BYTES", 10)
    store = KeyValueStore()
    assert [store.put("a", key, b"four") for key in ("0", "1", "2")] == [True, True, False]  # 12 bytes would be too many
    assert store.put("a", "1", b"sixsix")  # in place of the old value
    assert [store.put("b", key, b"") for key in ("0", "1")] == [True, False]  # 3 keys are all it takes
    store.finish("b", "0")
    assert store.put("b", "1", b"")
