"""A lock where files cannot be locked: a document that its holder renews, and that another may take over once it stands still.

    <name>/<n>.json     who the n-th holder is and how often it has renewed; claimed by ``put_if_absent``, so by one alone

    holder       claims n, renews it every few seconds, marks it as free at its end
    another      finds n: free, or of a process of this machine that has ended     claims n + 1 at once
                 else looks at it for a while, by its own clock: renewed           somebody works there
                                                                 stands still      claims n + 1

No clocks of two machines are compared. A holder that was away for so long that another took over (a machine that slept, a network
that was cut) hears of it at its next renewal.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sparkring.errors import CommitConflict, SparkringError
from sparkring.pipelines.data.stores.base import Store, numbered

LEASE_S = 15.0
"""Seconds that a lease has to stand still until it counts as left behind."""
RENEW_S = 3.0
LOOK_S = 0.5


@contextmanager
def lease(store: Store, name: str, *, busy: str, lost: Callable[[], None], lease_s: float = LEASE_S,
          renew_s: float = RENEW_S) -> Iterator[None]:
    """Keep other processes out of the block.

    Args:
        store: Has ``put_if_absent``.
        name: Folder of the lease, used for nothing else.
        busy: What to say where another process is inside.
        lost: Called in another thread, once, where another process has taken over.
        lease_s: Seconds that a lease has to stand still until it counts as left behind; the same for all who ask for this one.
        renew_s: Seconds between two renewals, a small part of them.
    Raises:
        CommitConflict: another process is inside.
    """
    held = _Held(store, name, _claim(store, name, busy, lease_s), renew_s=renew_s, lost=lost)
    try:
        yield
    finally:
        held.free()


class _Held:
    """A lease that this process has, renewed by a thread."""

    def __init__(self, store: Store, name: str, number: int, *, renew_s: float, lost: Callable[[], None]) -> None:
        self._store, self._name, self._number, self._renew_s, self._lost = store, name, number, renew_s, lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="sparkring-lease", daemon=True)
        self._thread.start()

    def free(self) -> None:
        """Let the next one in at once."""
        self._over.set()
        self._thread.join()
        with suppress(OSError):  # then it takes the next one a while
            if not self._taken_over():
                self._store.put(_document(self._name, self._number), _text(-1))

    def _renew(self) -> None:
        renewals = 0
        while not self._over.wait(self._renew_s):
            renewals += 1
            with suppress(OSError, SparkringError):  # the storage is away for a while: so it is for others
                if self._taken_over():
                    self._lost()
                    return
                self._store.put(_document(self._name, self._number), _text(renewals))

    def _taken_over(self) -> bool:
        """By any later holder: the next one may have come and gone meanwhile, and its document with it."""
        return self._number < max(numbered(self._store, self._name), default=self._number)


def _claim(store: Store, name: str, busy: str, lease_s: float) -> int:
    """Become the next holder; its number."""
    numbers = numbered(store, name)
    if numbers and not _left(store, _document(name, numbers[-1]), lease_s):
        raise CommitConflict(busy)
    number = numbers[-1] + 1 if numbers else 0
    try:
        store.put_if_absent(_document(name, number), _text(0))
    except CommitConflict:
        raise CommitConflict(busy) from None
    for old in numbers:
        store.delete(_document(name, old))
    return number


def _left(store: Store, document: str, lease_s: float) -> bool:
    """Whether the holder has gone: it said so, its process has ended, or it renews no more."""
    try:
        first = store.read(document)
        if _says_so(first):
            return True
        until = time.monotonic() + lease_s
        while time.monotonic() < until:
            time.sleep(LOOK_S)
            latest = store.read(document)
            if latest != first:
                return _says_so(latest)
    except FileNotFoundError:  # the next holder has taken it away
        return False
    return True


def _document(name: str, number: int) -> str:
    return f"{name}/{number}.json"


def _text(renewals: int) -> bytes:
    """What this process writes; -1 renewals mean that the lease is free."""
    return json.dumps({"host": socket.gethostname(), "renewals": renewals, "process": _process(os.getpid())}).encode()


def _says_so(text: bytes) -> bool:
    """Whether a holder's document says that it is free, or is that of a process that this machine knows to have
    ended.
    """
    try:
        holder: dict[str, Any] = json.loads(text)
        process = holder["process"]
        if holder["renewals"] < 0:
            return True
        mine = _process(os.getpid())
        here = mine is not None and process is not None and (mine["boot"], mine["pids"]) == (process["boot"], process["pids"])
        return here and _process(process["pid"]) != process
    except (ValueError, KeyError, TypeError):
        return False  # whatever it is, it may be renewed


def _process(pid: int) -> dict[str, Any] | None:
    """What tells a process from all others, ever and anywhere; None where it has ended, or the system does not say."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        if state == "Z":
            return None
        return {"boot": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
                "pids": str(Path("/proc/self/ns/pid").readlink()), "pid": pid, "started": int(rest[18])}
    except (OSError, ValueError, IndexError):
        return None
