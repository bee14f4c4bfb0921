"""A lease, for storage that cannot lock files: a document that its holder renews, and that another process may take
over if the holder stops renewing it.

    <name>/<n>.json     the n-th holder and its number of renewals; created by ``put_if_absent``, so by one process only

    the holder          creates n, renews it every few seconds, and marks it as free at the end
    another process     n is free, or its process ran on this machine and has ended     creates n + 1 at once
                        else watches n for a while, by its own clock: it is renewed     gives up: the lease is held
                                                                      it is not         creates n + 1

Clocks of two machines are never compared. A holder that paused so long that another process took over (a machine that
slept, a network that failed) notices it at its next renewal.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sparkring.errors import CommitConflict, SparkringError
from sparkring.pipelines.data.stores.base import Documents, numbered

LEASE_S = 15.0
"""Seconds without a renewal after which a lease counts as abandoned."""
RENEW_S = 3.0
"""Seconds between two renewals."""
LOOK_S = 0.5
"""Seconds between two looks at another process's lease."""


@contextmanager
def lease(store: Documents, name: str, *, busy: str, lost: Callable[[], None], lease_s: float = LEASE_S,
          renew_s: float = RENEW_S) -> Iterator[None]:
    """Keep other processes out of the block.

    Args:
        store: Has ``put_if_absent``.
        name: Folder of the lease, used for nothing else.
        busy: Text of the CommitConflict.
        lost: Called once, in another thread, if another process has taken over.
        lease_s: Seconds without a renewal after which the lease counts as abandoned; the same in all its processes.
        renew_s: Seconds between two renewals, much less than ``lease_s``.
    Raises:
        CommitConflict: another process is inside the block.
    """
    held = _Held(store, name, _claim(store, name, busy, lease_s), renew_s=renew_s, lost=lost)
    try:
        yield
    finally:
        held.free()


def is_leased(store: Documents, name: str, *, watch_s: float = 2 * RENEW_S) -> bool:
    """Whether a process holds the lease. One that is not marked as free is watched for ``watch_s`` seconds: is it renewed?"""
    numbers = numbered(store, name)
    return bool(numbers) and not _abandoned(store, _document(name, numbers[-1]), watch_s)


class _Held:
    """A lease that this process holds; a thread renews it."""

    def __init__(self, store: Documents, name: str, number: int, *, renew_s: float, lost: Callable[[], None]) -> None:
        self._store, self._name, self._number, self._renew_s, self._lost = store, name, number, renew_s, lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="sparkring-lease", daemon=True)
        self._thread.start()

    def free(self) -> None:
        """Stop renewing, and mark the lease as free, so that the next process need not wait."""
        self._over.set()
        self._thread.join()
        with suppress(OSError):  # the next process then waits until the lease counts as abandoned
            if not self._taken_over():
                self._store.put(_document(self._name, self._number), _text(-1))

    def _renew(self) -> None:
        renewals = 0
        while not self._over.wait(self._renew_s):
            renewals += 1
            with suppress(OSError, SparkringError):  # other processes do not reach the storage either
                if self._taken_over():
                    self._lost()
                    return
                self._store.put(_document(self._name, self._number), _text(renewals))

    def _taken_over(self) -> bool:
        """Whether a later holder exists; it need not be the next one, whose document may be deleted by now."""
        return self._number < max(numbered(self._store, self._name), default=self._number)


def _claim(store: Documents, name: str, busy: str, lease_s: float) -> int:
    """Become the next holder, and return its number; CommitConflict if the lease is held."""
    numbers = numbered(store, name)
    if numbers and not _abandoned(store, _document(name, numbers[-1]), lease_s):
        raise CommitConflict(busy)
    number = numbers[-1] + 1 if numbers else 0
    try:
        store.put_if_absent(_document(name, number), _text(0))
    except CommitConflict:
        raise CommitConflict(busy) from None
    for old in numbers:
        store.delete(_document(name, old))
    return number


def _abandoned(store: Documents, document: str, lease_s: float) -> bool:
    """Whether the holder marked the lease as free, has ended, or has stopped renewing; takes up to ``lease_s``."""
    try:
        first = store.read(document)
        if _is_free(first):
            return True
        until = time.monotonic() + lease_s
        while time.monotonic() < until:
            time.sleep(LOOK_S)
            latest = store.read(document)
            if latest != first:
                return _is_free(latest)
    except FileNotFoundError:  # the next holder has deleted it
        return False
    return True


def _document(name: str, number: int) -> str:
    return f"{name}/{number}.json"


def _text(renewals: int) -> bytes:
    """This process's document; -1 renewals mean that the lease is free. No two are equal: a store whose answer to ``put_if_absent`` was
    lost recognises its own document by that.
    """
    return json.dumps({"host": socket.gethostname(), "renewals": renewals, "process": _process(os.getpid()),
                       "written": uuid.uuid4().hex}).encode()


def _is_free(text: bytes) -> bool:
    """Whether a holder's document is marked as free, or its process ran on this machine and has ended."""
    try:
        holder: dict[str, Any] = json.loads(text)
        process = holder["process"]
        if holder["renewals"] < 0:
            return True
        mine = _process(os.getpid())
        here = mine is not None and process is not None and (mine["boot"], mine["pids"]) == (process["boot"], process["pids"])
        return here and _process(process["pid"]) != process
    except (ValueError, KeyError, TypeError):
        return False  # an unknown document may still be renewed


def _process(pid: int) -> dict[str, Any] | None:
    """A process's identity, unique across machines and reboots; None if it has ended, or the system has no /proc."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        if state == "Z":
            return None
        return {"boot": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
                "pids": str(Path("/proc/self/ns/pid").readlink()), "pid": pid, "started": int(rest[18])}
    except (OSError, ValueError, IndexError):
        return None
