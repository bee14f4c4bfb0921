"""Strangers on the same machine attack a live job at every port that it opens: it does not notice, and they get nothing."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from tests.support import ring_functions
from tests.support.attackers import LOOPBACK, NUM_SLOW, attack, audited, command_lines, listening, unpickled
from tests.support.ring_driver import Driver, driver, marks

NUM_REQUESTS = 10_000
MORE_MEMORY_BYTES = 200 << 20
"""A process under attack may take so much more than before; one body of the sizes that strangers announce would be more."""


@pytest.mark.parametrize("launcher", ["barrier", pytest.param("horovod.spark", marks=pytest.mark.nightly)])
def test_ten_thousand_hostile_requests_change_nothing_and_get_nothing(tmp_path: Path, launcher: str) -> None:
    calm, live, trace = tmp_path / "calm", tmp_path / "live", tmp_path / "unpickled-payload"
    for folder in (calm, live):
        folder.mkdir()
    (calm / "go-on").touch()
    with driver(tmp_path, {"master": "local[2]"}, environment=audited(tmp_path)) as running:
        undisturbed = running.ring(ring_functions.train_with_new_starts, str(calm), num_ranks=2, launcher=launcher, deadline_s=60)
        assert undisturbed.message == ""
        of_spark = listening(running.pid).keys()
        running.begin(ring_functions.train_with_new_starts, str(live), num_ranks=2, launcher=launcher, deadline_s=60)
        told = marks(live, num_ranks=2)
        doors = listening(running.pid)
        assert {address for address, _ in doors} == {LOOPBACK}  # the whole job, the JVM included
        ranks = {mark["pid"] for mark in told}  # Gloo listens there while ranks connect, and is not protected (SECURITY.md)
        ports = sorted(port for (address, port), owner in doors.items()
                       if (address, port) not in of_spark and "python" in owner.name() and owner.pid not in ranks)
        assert len(ports) == {"barrier": 1, "horovod.spark": 4}[launcher]  # rendezvous; and a service in the driver and in each task
        before = memory(running)
        began = time.time()
        loot = attack(ports, num_requests=NUM_REQUESTS, secret=secret_of(told[0]["address"]),
                      old_secret=secret_of(undisturbed.results[0]["address"]), trace=trace)
        ended = time.time()
        after = memory(running)
        seen_by_all = command_lines(running.pid) + Path("/proc/net/unix").read_text(encoding="ascii") + "\n".join(
            path.name for path in Path("/dev/shm").iterdir())
        (live / "go-on").touch()
        outcome = running.outcome()
    assert outcome.message == ""
    assert [rank["weights"] for rank in outcome.results] == [rank["weights"] for rank in undisturbed.results]
    assert outcome.results[0]["starts"] > undisturbed.results[0]["starts"]  # the ranks met again during the attack
    assert (loot.num_requests, len(loot.slow_s)) == (NUM_REQUESTS, NUM_SLOW)
    assert not trace.exists()
    assert unpickled(tmp_path, since=began, until=ended) == []
    assert unpickled(tmp_path, since=0.0, until=began)  # the control: Spark ships functions as pickles, and the hook saw them
    for secret in filter(None, (secret_of(told[0]["address"]), outcome.results[0]["key"])):
        assert secret not in seen_by_all
        assert not any(secret.encode() in answer for answer in loot.answers)
    assert {pid: after[pid] - before[pid] for pid in before.keys() & after.keys() if after[pid] - before[pid] > MORE_MEMORY_BYTES} == {}


def secret_of(address: str) -> str:
    return address.partition("/")[2]


def memory(running: Driver) -> dict[int, int]:
    """Resident bytes of the job's Python processes."""
    process = psutil.Process(running.pid)
    members = [process, *(child for child in process.children(recursive=True) if "python" in child.name())]
    return {member.pid: member.memory_info().rss for member in members}
