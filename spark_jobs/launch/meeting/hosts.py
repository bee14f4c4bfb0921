"""The host of each Spark task, and what follows from it: ranks, the ring's addresses, Horovod's environment.

Only ``describe_task`` looks at the host; everything else is computed from the facts that tasks exchange.

    partition   0  1  2  3        hosts are numbered in the order of their first partition,
    machine     A  B  A  B        and ranks of one host are consecutive:
    rank        0  2  1  3        host of rank = (0, 0, 1, 1)
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from sparkring.errors import EnvironmentProblem
from sparkring.pipelines.parallel.shared_memory.named_files import FOLDER, paths_of
from sparkring.spark_jobs.launch.meeting.versions import Versions, versions_here

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """The facts that a Spark task gives the others before the ring starts."""

    hostname: str
    spark_host: str
    """The name or address under which Spark knows the executor."""
    network: str
    """See ``network_identity``."""
    memory: str
    """See ``memory_identity``."""
    address: str
    """The IPv4 address that this task's rank uses in the ring."""
    interface: str
    addresses: tuple[str, ...]
    """All IPv4 addresses of the machine: where its connections may come from."""
    versions: Versions
    gpu: str | None
    """The task's GPU, as its rank's ``CUDA_VISIBLE_DEVICES`` names it."""
    clock: float
    """Seconds since the epoch when the task came, by its machine's clock."""
    port: int = 0
    """Port of the rendezvous, set by each task that may get the first rank."""
    doorbell: int = 0
    """Port at which other hosts try whether they reach this task (``reach.py``); 0 if there is one host."""

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Self:
        """The facts that ``asdict`` made JSON of."""
        return cls(**entry | {"versions": Versions(**entry["versions"])})

    def name_in(self, hosts: Collection[str]) -> str | None:
        """The name under which ``hosts`` lists this task's host, its own or Spark's, or None."""
        return next((name for name in (self.hostname, self.spark_host) if name in hosts), None)


@dataclass(frozen=True, kw_only=True)
class RankPlacement:
    """The rank of a task, and the host of each rank of the ring."""

    rank: int
    hosts: tuple[int, ...]
    """Host number of each rank."""

    def horovod_environment(self) -> dict[str, str]:
        """The variables that give Horovod the place of its rank."""
        host = self.hosts[self.rank]
        local_rank = self.rank - self.hosts.index(host)
        sizes = [self.hosts.count(number) for number in range(max(self.hosts) + 1)]
        crossing = [number for number, size in enumerate(sizes) if size > local_rank]
        return {
            "HOROVOD_RANK": str(self.rank), "HOROVOD_SIZE": str(len(self.hosts)),
            "HOROVOD_LOCAL_RANK": str(local_rank), "HOROVOD_LOCAL_SIZE": str(sizes[host]),
            "HOROVOD_CROSS_RANK": str(crossing.index(host)), "HOROVOD_CROSS_SIZE": str(len(crossing)),
            # Horovod keys the meeting of one host's ranks by this name; a number serves for machines of equal names too.
            "HOROVOD_HOSTNAME": f"host-{host}",
        }


def place_ranks(memories: Sequence[str]) -> list[RankPlacement]:
    """Give each task its rank.

    Args:
        memories: ``TaskFacts.memory`` by partition.
    Returns:
        The placement of each partition's task; partition 0 is rank 0.
    """
    numbers = {memory: number for number, memory in enumerate(dict.fromkeys(memories))}
    partitions = sorted(range(len(memories)), key=lambda partition: (numbers[memories[partition]], partition))
    hosts = tuple(numbers[memories[partition]] for partition in partitions)
    by_partition = {partition: RankPlacement(rank=rank, hosts=hosts) for rank, partition in enumerate(partitions)}
    return [by_partition[partition] for partition in range(len(memories))]


def chosen_tasks(facts: Sequence[TaskFacts], num_ranks: int, *, left_out: Collection[str]) -> list[int]:
    """Choose the tasks that get ranks, where there may be more tasks than ranks. Every task chooses the same.

    Args:
        facts: The facts of all tasks, by partition.
        num_ranks: Number of tasks to choose.
        left_out: Names of hosts that get ranks only if there is no other.
    Returns:
        Partitions, ascending; none if there are other hosts with too few tasks.
    """
    elsewhere = sum(fact.name_in(left_out) is None for fact in facts)
    if 0 < elsewhere < num_ranks:
        return []
    preferred = sorted(range(len(facts)), key=lambda partition: (facts[partition].name_in(left_out) is not None, partition))
    return sorted(preferred[:num_ranks])


def peer_addresses(facts: Sequence[TaskFacts]) -> frozenset[str]:
    """The addresses from which the ring's own tasks may send requests.

    Args:
        facts: The facts of the tasks that have ranks; the ring meets at the address of the first.
    Returns:
        Loopback addresses if the ring meets on loopback. Otherwise all other addresses of those machines, because a
        machine's routes decide from which address it sends.
    """
    on_loopback = facts[0].address.startswith("127.")
    return frozenset(address for fact in facts for address in fact.addresses if address.startswith("127.") == on_loopback)


def describe_task(spark_host: str, *, on_one_host: bool, gpu: str | None) -> TaskFacts:
    """Collect the facts of this task and its machine.

    Args:
        spark_host: The name or address under which Spark knows this executor.
        on_one_host: Whether all executors of the ring have that name, so that the ring needs no network.
        gpu: The task's GPU, as its rank's ``CUDA_VISIBLE_DEVICES`` names it.
    Raises:
        EnvironmentProblem: this machine has no address that other hosts can reach.
    """
    address, interface = ring_address(spark_host, on_one_host=on_one_host)
    return TaskFacts(
        hostname=socket.gethostname(), spark_host=spark_host, network=network_identity(), memory=memory_identity(),
        address=address, interface=interface,
        addresses=tuple(address for addresses in _addresses_by_interface().values() for address in addresses),
        versions=versions_here(), gpu=gpu, clock=time.time())


def network_identity() -> str:
    """Equal for two processes if they share a network namespace: loopback leads from one to the other."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}:{Path('/proc/self/ns/net').stat().st_ino}"


def memory_identity() -> str:
    """Equal for two processes if they see the same /dev/shm and the same host name; these count as one host."""
    shared = FOLDER.stat().st_dev if FOLDER.is_dir() else 0
    return f"{socket.gethostname()}:{network_identity()}:{shared}"


def remove_leftover_memory(token: str) -> None:
    """Remove the shared memory that killed ranks of this launch left; other ranks remove its name once all have opened it."""
    for path in paths_of(token):
        path.unlink(missing_ok=True)


def ring_address(spark_host: str, *, on_one_host: bool) -> tuple[str, str]:
    """Choose the IPv4 address that the ring uses on this machine, and the interface that owns it.

    If ``HOROVOD_GLOO_IFACE`` is set in the executor's environment, it decides. Otherwise a ring on one host uses loopback,
    and every other ring the address by which Spark knows the executor. If that name leads to loopback (as in Debian's
    /etc/hosts) or to another machine, the ring uses the address of the default route. Horovod knows only the interface's
    name and takes its first address, so between hosts this is the address.
    """
    interfaces = _addresses_by_interface()
    wanted = os.environ.get("HOROVOD_GLOO_IFACE")
    if wanted:
        if not interfaces.get(wanted):
            raise EnvironmentProblem(
                f"HOROVOD_GLOO_IFACE={wanted} has no IPv4 address on {socket.gethostname()}; name one of {', '.join(interfaces)}.")
        return interfaces[wanted][0], wanted
    owners = {address: name for name, addresses in interfaces.items() for address in addresses}
    candidates = [LOOPBACK] if on_one_host else [*_resolve(spark_host), *_default_route()]
    for address in candidates:
        if address in owners and (on_one_host or not address.startswith("127.")):
            return (address if on_one_host else interfaces[owners[address]][0]), owners[address]
    raise EnvironmentProblem(
        f"host {socket.gethostname()} has no IPv4 address that other hosts can reach (Spark knows it as {spark_host}); "
        f"set spark.executorEnv.HOROVOD_GLOO_IFACE to one of its interfaces: {', '.join(interfaces)} (on the driver "
        "HOROVOD_GLOO_IFACE), or give its name an address of its own in /etc/hosts.")


def interface_address(interface: str) -> str:
    """The IPv4 address of one of this machine's interfaces.

    Raises:
        EnvironmentProblem: this machine has no such interface, or it has no such address.
    """
    addresses = _addresses_by_interface()
    if not addresses.get(interface):
        raise EnvironmentProblem(f"{socket.gethostname()} has no interface {interface} with an IPv4 address for the ring; "
                                 f"set HOROVOD_GLOO_IFACE to one that driver and executors have ({', '.join(addresses)} here).")
    return addresses[interface][0]


def _addresses_by_interface() -> dict[str, list[str]]:
    """IPv4 addresses of the interfaces that are up."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return {name: [entry.address for entry in entries if entry.family == socket.AF_INET]
            for name, entries in psutil.net_if_addrs().items() if name in up}


def _resolve(host: str) -> list[str]:
    try:
        return socket.gethostbyname_ex(host)[2]
    except OSError:
        return []


def _default_route() -> list[str]:
    """This machine's address on its default route."""
    try:
        return [address_towards("192.0.2.1")]  # TEST-NET-1: an address that no machine has
    except OSError:
        return []


def address_towards(host: str) -> str:
    """The IPv4 address by which this machine would speak to ``host``. Connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
