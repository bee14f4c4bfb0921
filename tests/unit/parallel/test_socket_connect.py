"""Strangers that knock while ranks connect: they are sent away, and delay nobody."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from sparkring.pipelines.parallel.handshake import Caller
from sparkring.pipelines.parallel.transports.socket_connect import MOST_GUESTS, Reception, connect
from tests.support.tcp import LOOPBACK

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
HOST, RANK = 0, 1


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0), backlog=2 * MOST_GUESTS) as made:
        yield made


def _place(listener: socket.socket) -> str:
    return "{}:{}".format(*listener.getsockname())


def _soon() -> float:
    return time.monotonic() + 20


def _received(listener: socket.socket, peers: list[int], until: float) -> dict[int, socket.socket]:
    with Reception(listener, KEY, HOST) as reception:
        return reception.receive(peers, until)


def _says(words: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(words)


def _lies(connection: socket.socket) -> None:
    connection.sendall(Caller(OTHER_KEY, rank=RANK, host=HOST).hello + bytes(32))


@pytest.mark.parametrize("stranger", [
    pytest.param(_says(b""), id="are silent"), pytest.param(_says(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 40), id="speak HTTP"),
    pytest.param(_lies, id="do not know the key"), pytest.param(lambda connection: connection.close(), id="hang up")])
def test_a_rank_is_met_among_strangers_that(listener: socket.socket, stranger: Callable[[socket.socket], None]) -> None:
    with ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        for _ in range(MOST_GUESTS + 20):
            knocking = stack.enter_context(socket.create_connection(listener.getsockname()))
            stranger(knocking)
        met = threads.submit(_received, listener, [RANK], _soon())
        mine = stack.enter_context(connect(_place(listener), Caller(KEY, rank=RANK, host=HOST), _soon()))
        theirs = stack.enter_context(met.result()[RANK])
        assert (mine.getsockname(), mine.getpeername()) == (theirs.getpeername(), theirs.getsockname())


def test_strangers_are_disconnected_when_the_ranks_have_met(listener: socket.socket) -> None:
    with ThreadPoolExecutor(1) as threads, socket.create_connection(listener.getsockname()) as silent:
        met = threads.submit(_received, listener, [RANK], _soon())
        with connect(_place(listener), Caller(KEY, rank=RANK, host=HOST), _soon()), met.result()[RANK]:
            silent.settimeout(20)
            assert silent.recv(1) == b""


def test_a_rank_that_was_met_is_not_met_again(listener: socket.socket) -> None:
    with ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        met = threads.submit(_received, listener, [RANK, RANK + 1], _soon())
        for rank in (RANK, RANK, RANK + 1):
            stack.enter_context(connect(_place(listener), Caller(KEY, rank=rank, host=HOST), _soon()))
        found = met.result()
        assert {rank: stack.enter_context(connection).getpeername() for rank, connection in found.items()}.keys() == {RANK, RANK + 1}


def test_a_rank_that_does_not_come_is_named(listener: socket.socket) -> None:
    with pytest.raises(ConnectionError, match="was not reached by rank 1"):
        _received(listener, [RANK], time.monotonic() + 0.05)


def _answers_with(listener: socket.socket, words: bytes) -> None:
    with suppress(ConnectionError):
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(words)


@pytest.mark.parametrize(("words", "why"), [
    pytest.param(bytes(64), "something else answers there", id="a stranger answers"), pytest.param(b"", "it hung up", id="it hangs up")])
def test_a_rank_does_not_take_somebody_else_for_its_peer(listener: socket.socket, words: bytes, why: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(_answers_with, listener, words)
        with pytest.raises(ConnectionError, match=rf"cannot connect to rank 0 at {LOOPBACK}:\d+ \({why}\)"):
            connect(_place(listener), Caller(KEY, rank=RANK, host=HOST), _soon())


def test_a_place_where_nobody_listens_is_named() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        place = _place(listener)
    with pytest.raises(ConnectionError, match=rf"cannot connect to rank 0 at {place} \(Connection refused\)"):
        connect(place, Caller(KEY, rank=RANK, host=HOST), _soon())
