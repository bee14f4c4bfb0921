"""Whether the processes of other ranks of this host still run, so that a wait for one that has ended ends at once.

Where ranks cannot see each other's processes, in containers of their own, nobody is found to have ended: waits end at the deadline.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import psutil

ASK_AFTER_S = 0.2
"""How long a rank waits before it asks whether those it waits for still run, and then between questions."""


def process_identity() -> tuple[int, int]:
    """This process, as the others are told of it: its id, and when it was started, in milliseconds since 1970."""
    own = psutil.Process()
    return own.pid, int(own.create_time() * 1000)


class PeerProcesses:
    """The processes of other ranks."""

    def __init__(self, told: Mapping[int, Sequence[int]]) -> None:
        """Take what each rank says of ``process_identity``, by rank; this process and those that cannot be seen are left out."""
        self.processes = {rank: process for rank, (pid, started) in told.items() if (process := _process(pid, started)) is not None}

    def ended(self, ranks: Iterable[int]) -> set[int]:
        """Those of some ranks whose processes have ended."""
        return {rank for rank in ranks if rank in self.processes and not _runs(self.processes[rank])}


def _process(pid: int, started_ms: int) -> psutil.Process | None:
    """Another rank's process, if it is one that this rank can see."""
    if pid == os.getpid():
        return None
    try:
        process = psutil.Process(pid)
        return process if int(process.create_time() * 1000) == started_ms else None
    except psutil.Error:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
