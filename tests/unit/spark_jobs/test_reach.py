"""Hosts try each other before a rank joins: two addresses of loopback stand in for two hosts."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sparkring.spark_jobs.launch.meeting.hosts import TaskFacts
from sparkring.spark_jobs.launch.meeting.reach import Doorbell, unreachable
from sparkring.spark_jobs.launch.meeting.versions import Versions

ALPHA, BETA = "127.0.0.2", "127.0.0.3"
SECRET = "the launch's"


@pytest.fixture
def bells() -> Iterator[list[Doorbell]]:
    """Of tasks 0 and 1 on alpha, and task 2 on beta."""
    made = [Doorbell(address, secret=SECRET, partition=partition) for partition, address in enumerate((ALPHA, ALPHA, BETA))]
    yield made
    for bell in made:
        bell.close()


def _facts(partition: int, port: int, *, address: str = "") -> TaskFacts:
    host, own = ("alpha", ALPHA) if partition < 2 else ("beta", BETA)
    return TaskFacts(hostname=host, spark_host=host, network=host, memory=host, address=address or own, interface="eth0",
                     addresses=("127.0.0.1", "10.0.0.7"), versions=Versions("1", "3.11", None), gpu=None, clock=0.0, doorbell=port)


def test_hosts_that_answer_reach_each_other(bells: list[Doorbell]) -> None:
    facts = [_facts(partition, bell.port) for partition, bell in enumerate(bells)]
    assert [unreachable(partition, facts, [0, 1, 2], secret=SECRET) for partition in range(3)] == [None, None, None]


def test_a_host_that_does_not_answer_is_named_with_what_to_set(bells: list[Doorbell]) -> None:
    with socket.socket() as closed:
        closed.bind((BETA, 0))
        facts = [_facts(0, bells[0].port), _facts(1, bells[1].port), _facts(2, closed.getsockname()[1])]
        assert unreachable(0, facts, [0, 1, 2], secret=SECRET) == (
            f"alpha cannot reach beta at {BETA} on its interface eth0 (Connection refused); set spark.executorEnv.HOROVOD_GLOO_IFACE to an "
            "interface by which hosts reach each other (beta has 10.0.0.7), or let their firewalls pass all ports between them.")
        assert unreachable(1, facts, [0, 1, 2], secret=SECRET) is None, "one task of a host tries for all of it"
        assert unreachable(0, facts, [0, 1], secret=SECRET) is None, "a host that gets no rank need not be reached"


@pytest.mark.parametrize("other", [pytest.param(0, id="this very host"), pytest.param(1, id="another task of it")])
def test_an_address_that_leads_to_another_task_is_no_way_to_a_host(bells: list[Doorbell], other: int) -> None:
    facts = [_facts(0, bells[0].port), _facts(1, bells[1].port), _facts(2, bells[other].port, address=ALPHA)]
    found = unreachable(0, facts, [0, 1, 2], secret=SECRET)
    assert found is not None
    assert f"alpha cannot reach beta at {ALPHA} on its interface eth0 (something else answers there)" in found
