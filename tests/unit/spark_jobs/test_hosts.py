"""Places of ranks on hosts, worked by hand, and the addresses of this machine."""

from __future__ import annotations

import secrets
import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sparkring.errors import EnvironmentProblem
from sparkring.pipelines.parallel.shared_memory.named_files import segment_path, socket_path
from sparkring.spark_jobs.launch.meeting.driver_address import driver_address
from sparkring.spark_jobs.launch.meeting.hosts import (
    LOOPBACK,
    chosen_tasks,
    describe_task,
    place_ranks,
    remove_leftover_memory,
    ring_address,
)
from tests.support import seams


def horovod(places_at: list[str], name: str) -> list[int]:
    """One of Horovod's variables, by partition."""
    return [int(place.horovod_environment()[f"HOROVOD_{name}"]) for place in place_ranks(places_at)]


def test_ranks_of_one_host_are_consecutive() -> None:
    interleaved = list("ABAB")
    assert [place.rank for place in place_ranks(interleaved)] == [0, 2, 1, 3]
    assert {place.hosts for place in place_ranks(interleaved)} == {(0, 0, 1, 1)}


def test_partition_0_is_rank_0_wherever_it_runs() -> None:
    assert [place.rank for place in place_ranks(list("CABC"))] == [0, 2, 3, 1]


def test_horovod_is_told_of_hosts_of_unequal_size() -> None:
    uneven = list("ABBAB")  # ranks: A 0 1, B 2 3 4
    assert horovod(uneven, "RANK") == [0, 2, 3, 1, 4]
    assert horovod(uneven, "LOCAL_RANK") == [0, 0, 1, 1, 2]
    assert horovod(uneven, "LOCAL_SIZE") == [2, 3, 3, 2, 3]
    assert horovod(uneven, "CROSS_RANK") == [0, 1, 1, 0, 0]  # the third rank of B has no counterpart on A
    assert horovod(uneven, "CROSS_SIZE") == [2, 2, 2, 2, 1]
    names = [place.horovod_environment()["HOROVOD_HOSTNAME"] for place in place_ranks(uneven)]
    assert names == ["host-0", "host-1", "host-1", "host-0", "host-1"]


def test_a_ring_on_one_host_stays_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)
    assert ring_address("any-name", on_one_host=True)[0] == LOOPBACK


def test_a_ring_between_hosts_never_takes_a_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)
    try:
        address, interface = ring_address("localhost", on_one_host=False)
    except EnvironmentProblem:
        pytest.skip("this machine has no network")
    assert not address.startswith("127.")
    assert interface in [name for _, name in socket.if_nameindex()]


def test_the_environment_may_name_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback = ring_address("localhost", on_one_host=True)[1]
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", loopback)
    assert ring_address("localhost", on_one_host=False) == (LOOPBACK, loopback)
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "nonesuch0")
    with pytest.raises(EnvironmentProblem, match=f"HOROVOD_GLOO_IFACE=nonesuch0 has no IPv4 address on .*; name one of .*{loopback}"):
        ring_address("localhost", on_one_host=False)


def driver(host: str) -> SparkSession:
    """A session on a cluster, whose executors find the driver by this name."""
    properties = {"spark.master": "spark://alpha:7077", "spark.driver.host": host}
    return cast("SparkSession", SimpleNamespace(conf=SimpleNamespace(get=properties.get),
                                                sparkContext=SimpleNamespace(getConf=lambda: properties)))


def test_a_driver_whose_own_name_leads_to_loopback_is_met_at_its_default_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)
    monkeypatch.setattr("socket.gethostbyname", lambda _: "127.0.1.1")  # as by Debian's /etc/hosts, on the driver alone
    monkeypatch.setattr("socket.gethostbyname_ex", lambda host: (host, [], ["127.0.1.1"]))
    monkeypatch.setattr(seams.HOSTS_ADDRESSES_BY_INTERFACE, lambda: {"lo": [LOOPBACK], "eth0": ["10.0.0.7"]})
    monkeypatch.setattr(seams.HOSTS_DEFAULT_ROUTE, lambda: ["10.0.0.7"])
    assert driver_address(driver("alpha")) == ("10.0.0.7", "eth0")
    assert driver_address(driver("localhost")) == driver_address(driver(LOOPBACK)) == (LOOPBACK, "lo"), "executors are here, too"
    monkeypatch.setattr(seams.HOSTS_DEFAULT_ROUTE, list)
    with pytest.raises(EnvironmentProblem, match=r"Spark knows it as alpha\); .* give its name an address of its own in /etc/hosts"):
        driver_address(driver("alpha"))


def test_what_killed_ranks_left_in_shared_memory_is_removed_and_nothing_else() -> None:
    mine, other = secrets.token_hex(16), secrets.token_hex(16)
    left = [path for token in (mine, other) for path in (segment_path(token, 0), socket_path(token, 1))]
    for path in left:
        path.touch()
    try:
        remove_leftover_memory(mine)
        assert [path.exists() for path in left] == [False, False, True, True]
    finally:
        remove_leftover_memory(other)
    assert not any(path.exists() for path in left)


def test_two_looks_at_one_machine_agree_on_who_it_is() -> None:
    one, other = (describe_task("localhost", on_one_host=True, gpu=None) for _ in range(2))
    assert (one.memory, one.network) == (other.memory, other.network)
    assert LOOPBACK in one.addresses


def test_hosts_that_are_left_out_get_ranks_only_where_there_is_no_other() -> None:
    here = describe_task("127.0.0.1", on_one_host=True, gpu=None)
    facts = [replace(here, hostname=name) for name in "ABABC"]
    assert chosen_tasks(facts, 3, left_out=("A",)) == [1, 3, 4]
    assert chosen_tasks(facts, 3, left_out=()) == [0, 1, 2]
    assert chosen_tasks(facts, 4, left_out=("A",)) == [], "the ring is to be started with three"
    assert chosen_tasks(facts, 4, left_out=("A", "B", "C")) == [0, 1, 2, 3]
    by_spark = [replace(here, spark_host=f"{name}.example") for name in "ABABC"]
    assert chosen_tasks(by_spark, 3, left_out=("A.example",)) == [1, 3, 4], "what Spark lost there, it names as it does the host"
