"""A lease in place of a lock: one process inside, the next one in when it has gone, however it went."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sparkring.errors import CommitConflict
from sparkring.pipelines.data.stores.lease import lease
from sparkring.pipelines.data.stores.local import LocalStore
from tests.support.away_store import AwayStore

LEASE_S, RENEW_S, DEADLINE_S = 1.5, 0.1, 20.0
HOLDER = """
import os, sys
from pathlib import Path
from sparkring.pipelines.data.stores.lease import lease
from sparkring.pipelines.data.stores.local import LocalStore
with lease(LocalStore(Path(sys.argv[1])), ".lock", busy="taken", lost=lambda: None, lease_s=1000, renew_s=1000):
    os._exit(0)  # as if killed: nothing is tidied up
"""


def _never() -> None:
    raise AssertionError("the lease was lost")


def test_one_is_inside_and_the_next_one_gets_in_at_once_when_it_has_left(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with (lease(store, ".lock", busy="taken", lost=_never, lease_s=LEASE_S, renew_s=RENEW_S),
          pytest.raises(CommitConflict, match="taken"), lease(store, ".lock", busy="taken", lost=_never, lease_s=LEASE_S)):
        pass
    for _ in range(3):
        with lease(store, ".lock", busy="taken", lost=_never, lease_s=1000, renew_s=RENEW_S):  # would wait for 1000 s
            assert len(store.names(".lock")) == 1


def test_a_process_of_this_machine_that_has_died_is_not_waited_for(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HOLDER, str(tmp_path)], check=True, timeout=DEADLINE_S)
    store = LocalStore(tmp_path)
    (left,) = store.names(".lock")
    with lease(store, ".lock", busy="taken", lost=_never, lease_s=1000):
        pass
    document = json.loads(store.read(f".lock/{int(left.removesuffix('.json')) + 1}.json"))
    elsewhere = document | {"renewals": 3, "process": document["process"] | {"boot": "another machine"}}
    store.put(".lock/5.json", json.dumps(elsewhere).encode())  # the control: of another machine nothing is known but that it stands still
    held = threading.Event()

    def take() -> None:
        with lease(store, ".lock", busy="taken", lost=_never, lease_s=LEASE_S):
            held.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not held.wait(LEASE_S / 2)
    thread.join(DEADLINE_S)
    assert held.is_set()


def test_a_holder_that_was_away_for_too_long_hears_that_another_took_over(tmp_path: Path) -> None:
    storage, lost = AwayStore(tmp_path), threading.Event()
    with lease(storage, ".lock", busy="taken", lost=lost.set, lease_s=LEASE_S, renew_s=RENEW_S):
        storage.away = True
        with lease(LocalStore(tmp_path), ".lock", busy="taken", lost=_never, lease_s=LEASE_S, renew_s=RENEW_S):
            assert not lost.is_set()
            storage.away = False
            assert lost.wait(DEADLINE_S)
        freed = LocalStore(tmp_path).read(".lock/1.json")
    assert LocalStore(tmp_path).read(".lock/1.json") == freed  # it leaves alone what is not its own any more


def test_a_holder_that_was_away_while_two_others_came_hears_of_it_too(tmp_path: Path) -> None:
    storage, lost, others = AwayStore(tmp_path), threading.Event(), LocalStore(tmp_path)
    with lease(storage, ".lock", busy="taken", lost=lost.set, lease_s=LEASE_S, renew_s=RENEW_S):
        storage.away = True
        with lease(others, ".lock", busy="taken", lost=_never, lease_s=LEASE_S, renew_s=RENEW_S):
            pass  # and was done
        with lease(others, ".lock", busy="taken", lost=_never, lease_s=LEASE_S, renew_s=RENEW_S):
            assert others.names(".lock") == ["2.json"]
            storage.away = False
            assert lost.wait(DEADLINE_S)
