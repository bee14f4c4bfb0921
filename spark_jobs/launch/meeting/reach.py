"""Whether the hosts of a ring reach each other at the addresses that it will use; a rank that joined would wait for a timeout.

The first task of each host connects to that of each other host, as Gloo's ranks will. Who answers proves to be that task: one address may
belong to every host, as Docker's 172.17.0.1 does.

    task 0 on alpha    listens at 10.0.0.2, connects to 10.0.0.3 -> "I am task 2"
    task 2 on beta     listens at 10.0.0.3, connects to 10.0.0.2 -> "I am task 0"
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sparkring.spark_jobs.launch.meeting.guarded_server import GuardedHandler, GuardedServer
from sparkring.spark_jobs.launch.meeting.hosts import TaskFacts

REACH_S = 10.0
"""Seconds for a connection and its answer."""
AT_ONCE = 256
"""Hosts that one host tries at once: more would take longer than the other tasks wait."""


class Doorbell(GuardedServer):
    """Answers whoever connects with the proof that this task is here.

    Args:
        address: This task's IPv4 address in the ring.
        secret: The launch's secret.
        partition: This task's partition.
    """

    def __init__(self, address: str, *, secret: str, partition: int) -> None:
        self.proof = _proof(secret, partition)
        super().__init__((address, 0), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="doorbell", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that the system gave."""
        return int(self.server_address[1])

    def close(self) -> None:
        """Stop and free the port."""
        self.shutdown()
        self._thread.join()
        self.hang_up()
        self.server_close()


class _Handler(GuardedHandler):
    server: Doorbell

    def handle(self) -> None:
        """Answer without a question."""
        self.wfile.write(self.server.proof)


def unreachable(partition: int, facts: Sequence[TaskFacts], chosen: Sequence[int], *, secret: str) -> str | None:
    """Try all other hosts, if this task is the first of its host.

    Args:
        partition: This task's partition.
        facts: The facts of all tasks, by partition.
        chosen: Partitions whose tasks get ranks, ascending.
        secret: The launch's secret.
    Returns:
        The first host that cannot be reached and what to do, or None.
    """
    first: dict[str, int] = {}
    for each in chosen:
        first.setdefault(facts[each].memory, each)
    others = [other for other in first.values() if other != partition]
    if partition not in first.values() or not others:
        return None
    with ThreadPoolExecutor(min(AT_ONCE, len(others))) as pool:
        reasons = list(pool.map(partial(_ring_at, facts, secret=secret), others))
    mine = facts[partition]
    for other, reason in zip(others, reasons, strict=True):
        if reason:
            theirs = facts[other]
            choice = ", ".join(address for address in theirs.addresses if not address.startswith("127.")) or "loopback only"
            return (f"{mine.hostname} cannot reach {theirs.hostname} at {theirs.address} on its interface {theirs.interface} ({reason}); "
                    "set spark.executorEnv.HOROVOD_GLOO_IFACE to an interface by which hosts reach each other "
                    f"({theirs.hostname} has {choice}), or let their firewalls pass all ports between them.")
    return None


def _ring_at(facts: Sequence[TaskFacts], partition: int, *, secret: str) -> str | None:
    """Why a task cannot be reached, or None."""
    other, wanted = facts[partition], _proof(secret, partition)
    try:
        with socket.create_connection((other.address, other.doorbell), timeout=REACH_S) as connection, connection.makefile("rb") as stream:
            answer = stream.read(len(wanted))
    except OSError as error:
        return error.strerror or "no answer"
    return None if hmac.compare_digest(answer, wanted) else "something else answers there"


def _proof(secret: str, partition: int) -> bytes:
    return hmac.new(secret.encode(), f"task {partition}".encode(), hashlib.sha256).hexdigest().encode()
