"""What is changed in upstream's launcher while it runs, each beside upstream's own way as the control."""

from __future__ import annotations

import http.client
import os
import pickle
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from horovod.runner.common.util import network, secret
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer
from horovod.spark.driver.driver_service import SparkDriverClient, SparkDriverService

from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.launch.horovod.hardening import hardened_launch, hardened_services
from sparkring.spark_jobs.launch.horovod.ranks import HorovodRanks
from sparkring.spark_jobs.launch.meeting.hosts import LOOPBACK
from sparkring.spark_jobs.launch.meeting.rendezvous import KeyValueStore
from tests.support import seams
from tests.support.attackers import Payload
from tests.support.cell import listening_on

KEY = b"k" * 32


@contextmanager
def service() -> Iterator[tuple[SparkDriverService, int]]:
    """Upstream's service on the driver, and its port."""
    running = SparkDriverService(1, 1, None, (), {}, KEY, {"lo"})
    try:
        yield running, running.get_port()
    finally:
        running.shutdown()


def test_a_service_listens_on_the_ring_s_interface_only() -> None:
    with hardened_services("lo"), service() as (_, port):
        assert listening_on(port) == [LOOPBACK]
    with service() as (_, port):
        assert listening_on(port) == ["0.0.0.0"]  # the control


def test_a_service_still_answers_who_has_the_key() -> None:
    with hardened_services("lo"), service() as (running, _):
        client = SparkDriverClient(running.addresses(), KEY, verbose=0)
        assert [address for address, _ in client.addresses()["lo"]] == [LOOPBACK]
        with pytest.raises(network.NoValidAddressesFound):
            SparkDriverClient(running.addresses(), b"x" * 32, verbose=0)


@pytest.mark.parametrize("locked", [True, False], ids=["here", "the control: upstream"])
def test_a_service_does_not_wait_for_as_much_as_a_stranger_announces(locked: bool) -> None:
    with hardened_services("lo") if locked else nullcontext(), service() as (_, port), \
            socket.create_connection((LOOPBACK, port), timeout=20 if locked else 1) as connection:
        connection.sendall(bytes(32) + struct.pack("i", 2**31 - 1))
        if locked:
            assert connection.recv(1) == b""  # hung up on
        else:
            with pytest.raises(TimeoutError):
                connection.recv(1)


def test_a_service_gives_a_stranger_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.GUARDED_SERVER_REQUEST_TIMEOUT_S, 0.3)
    with hardened_services("lo"), service() as (_, port), socket.create_connection((LOOPBACK, port), timeout=20) as connection:
        connection.sendall(b"half a digest")
        assert connection.recv(1) == b""


def test_large_messages_are_read_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.HARDENING_LARGE, threading.BoundedSemaphore(1))
    monkeypatch.setattr(seams.HARDENING_REQUEST_TIMEOUT_S, 0.1)
    announced = bytes(32) + struct.pack("i", 1 << 20)
    with hardened_services("lo"), service() as (_, port), socket.create_connection((LOOPBACK, port), timeout=20) as first:
        first.sendall(announced)
        with socket.create_connection((LOOPBACK, port), timeout=20) as second:
            second.sendall(announced)
            one_of_them_hears = [connection for connection in (second,) if connection.recv(1) == b""]
        assert one_of_them_hears


_seen: list[str] = []
_watching = threading.Event()


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _watching.is_set() and event == "pickle.find_class":
        _seen.append(f"{args[0]}.{args[1]}")


def send(port: int, key: bytes, message: bytes) -> None:
    with socket.create_connection((LOOPBACK, port), timeout=20) as connection:
        connection.sendall(secret.compute_digest(key, message) + struct.pack("i", len(message)) + message)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(65536)


def test_a_service_unpickles_nothing_that_the_run_s_key_has_not_signed(tmp_path: Path) -> None:
    sys.addaudithook(_hook)
    payload = pickle.dumps(Payload(tmp_path / "unpickled"))
    with hardened_services("lo"), service() as (_, port):
        _watching.set()
        try:
            send(port, b"x" * 32, payload)
            send(port, b"", payload)
            assert _seen == []
            send(port, KEY, payload)  # the control: who has the key may do all, and the hook sees it
        finally:
            _watching.clear()
    assert _seen == [f"{os.mkdir.__module__}.mkdir"]
    assert (tmp_path / "unpickled").is_dir()


def test_upstream_s_open_rendezvous_cannot_be_started() -> None:
    with hardened_services("lo"), pytest.raises(EnvironmentProblem, match="without authentication on every interface"):
        RendezvousServer(verbose=0).start()


def test_all_is_as_before_after_a_launch_and_only_one_launch_is_on() -> None:
    ranks = HorovodRanks(secret="s", address=LOOPBACK, deadline_s=60)
    before = (network.find_port, network.Wire, network.socketserver)
    with hardened_launch("lo", ranks):
        assert network.find_port is not before[0]
        with pytest.raises(EnvironmentProblem, match="run one at a time"), hardened_launch("lo", ranks):
            pass
    assert (network.find_port, network.Wire, network.socketserver) == before


def test_a_horovod_that_cannot_be_locked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("horovod.spark.runner._launch_job")
    with pytest.raises(EnvironmentProblem, match=r"horovod.spark.runner has no _launch_job.*use launcher: barrier"), \
            hardened_launch("lo", HorovodRanks(secret="s", address=LOOPBACK, deadline_s=60)):
        pass
    with pytest.raises(EnvironmentProblem, match="no interface nic7 with an IPv4 address"), hardened_services("nic7"):
        pass


def test_a_scope_that_all_ranks_are_through_with_is_empty_in_whatever_order_they_say_so() -> None:
    """Two ranks on one host: rank 0 is through with its scope between hosts, where it is alone, before rank 1 says that it is through
    with the one within the host.
    """
    order = [("local_host", "0"), ("cross_0", "0"), ("local_host", "1"), ("cross_1", "1")]
    ours, theirs = KeyValueStore(), RendezvousServer(verbose=0)
    port = theirs.start()
    theirs.init(get_host_assignments(parse_hosts("host:2"), 2))
    try:
        for scope, rank in order:
            ours.put(scope, rank, b"address")
            ask(port, "PUT", f"/{scope}/{rank}", b"address")
        for scope, rank in order:
            ours.finish(scope, rank)
            ask(port, "DELETE", f"/{scope}/{rank}")
        assert [ours.get("local_host", rank) for rank in "01"] == [None, None]
        assert ask(port, "GET", "/local_host/1") == b"address"  # the control: a second hvd.init would find it
    finally:
        theirs.stop()


def ask(port: int, method: str, path: str, body: bytes | None = None) -> bytes:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=20)
    try:
        connection.request(method, path, body)
        return connection.getresponse().read()
    finally:
        connection.close()
