"""Hosts made of namespaces: what tells them apart, how their links are cut and shaped, and that nothing of them is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from harness.hosts import INTERFACE, Host, hosts, why_no_hosts
from sparkring.spark_jobs.launch.meeting.hosts import memory_identity, network_identity
from tests.support.training import await_condition

REASON = why_no_hosts()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

LOOKS = 15
"""Datagrams that are sent before none is taken to pass: the first may wait until the other host's hardware address is known."""


def _received(host: Host) -> int:
    """Datagrams that came to a port of the host where nobody listens."""
    lines = [line.split() for line in host.run(["cat", "/proc/net/snmp"]).splitlines() if line.startswith("Udp:")]
    return int(dict(zip(*lines, strict=True))["NoPorts"])


def _reaches(one: Host, other: Host) -> bool:
    """Whether datagrams pass in this direction."""
    before = _received(other)
    for _ in range(LOOKS):
        subprocess.run(one.command(["bash", "-c", f"echo x >/dev/udp/{other.address}/9"]), check=False, capture_output=True)
        if _received(other) > before:
            return True
        time.sleep(0.02)
    return False


def test_hosts_have_their_own_name_address_processes_and_shared_memory(tmp_path: Path) -> None:
    with hosts(tmp_path, "alpha", "beta", loopback_names=["beta"]) as (alpha, beta):
        for host, own in ((alpha, alpha.address), (beta, "127.0.1.1")):
            assert host.run(["hostname"]).strip() == host.name
            assert host.address in host.run(["ip", "-4", "address", "show", "dev", INTERFACE])
            assert host.run(["getent", "hosts", host.name]).split() == [own, host.name]
        assert beta.run(["getent", "hosts", "alpha"]).split() == [alpha.address, "alpha"]
        alpha.run(["touch", "/dev/shm/mine"])
        assert (alpha.run(["ls", "/dev/shm"]), beta.run(["ls", "/dev/shm"])) == ("mine\n", "")
        assert not Path("/dev/shm/mine").exists()
        assert alpha.run(["cat", "/proc/1/comm"]).strip() == "sh", "a host does not see the machine's processes"


def test_links_are_cut_in_both_directions_or_in_one_and_mended(tmp_path: Path) -> None:
    with hosts(tmp_path, "alpha", "beta") as (alpha, beta):
        def passing(there: bool, back: bool) -> bool:
            return (_reaches(alpha, beta), _reaches(beta, alpha)) == (there, back)

        cuts: list[tuple[Callable[[], None], tuple[bool, bool]]] = [
            (beta.link.cut, (False, False)), (beta.link.heal, (True, True)), (beta.link.cut_incoming, (False, True)),
            (beta.link.clear, (True, True)), (beta.link.cut_outgoing, (True, False)), (beta.link.clear, (True, True))]
        assert passing(True, True)
        for act, directions in cuts:
            act()
            # awaited: after a cut the hardware address is asked for again, once a second
            await_condition(partial(passing, *directions), f"{act.__name__}: {directions}")


def test_a_host_that_vanishes_takes_its_processes_along_and_the_block_the_rest(tmp_path: Path) -> None:
    with hosts(tmp_path, "alpha", "beta") as (alpha, beta):
        shutil.copy("/bin/sleep", tmp_path / "rank-sleeper")  # processes are named after their file
        sleepers = [subprocess.Popen(host.command([tmp_path / "rank-sleeper", "600"])) for host in (alpha, beta)]
        await_condition(lambda: len(alpha.ranks()) == len(beta.ranks()) == 1, "a rank on each host")
        beta.vanish()
        assert len(alpha.ranks()) == 1
        assert sleepers[1].wait(20) != 0
        assert sleepers[0].poll() is None
        assert not psutil.pid_exists(beta.pid)
    assert sleepers[0].wait(20) != 0
    assert "sw0" not in psutil.net_if_stats()


@pytest.mark.nightly  # test_train_on_hosts.py shows it for every change
def test_hosts_of_namespaces_are_hosts_to_the_launcher(tmp_path: Path) -> None:
    look = ("from sparkring.spark_jobs.launch.meeting.hosts import memory_identity, network_identity\n"
            "print(memory_identity(), network_identity())")
    with hosts(tmp_path, "alpha", "beta") as made:
        seen = [tuple(host.run([sys.executable, "-c", look]).split()) for host in made]
    everyone = [*seen, (memory_identity(), network_identity())]
    assert all(len(set(identities)) == 3 for identities in zip(*everyone, strict=True))


def test_a_host_that_resolves_to_loopback_rings_at_its_default_route_and_is_refused_without_one(tmp_path: Path) -> None:
    look = ("from sparkring.errors import EnvironmentProblem\n"
            "from sparkring.spark_jobs.launch.meeting.hosts import ring_address\n"
            "try:\n    print(*ring_address('beta', on_one_host=False))\nexcept EnvironmentProblem as error:\n    print(error)")
    with hosts(tmp_path, "alpha", "beta", loopback_names=["beta"]) as (_, beta):
        assert beta.run([sys.executable, "-c", look]).split() == [beta.address, INTERFACE]
        beta.run(["ip", "route", "delete", "default"])
        said = beta.run([sys.executable, "-c", look])
    assert said.startswith("host beta has no IPv4 address that other hosts can reach (Spark knows it as beta); "
                           "set spark.executorEnv.HOROVOD_GLOO_IFACE to one of its interfaces: lo, eth0")
