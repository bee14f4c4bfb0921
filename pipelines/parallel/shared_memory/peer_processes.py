"""Whether the processes of other ranks of this host still run, so that waiting for a rank that has ended fails at once.

Ranks in containers of their own may not see each other's processes. They are then taken to run, and waits end at the deadline.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import psutil

ASK_AFTER_S = 0.2
"""Seconds of waiting before a rank checks that the awaited processes still run, and between such checks."""


def process_identity() -> tuple[int, int]:
    """This process for its peers: its id, and its start in milliseconds since 1970."""
    own = psutil.Process()
    return own.pid, int(own.create_time() * 1000)


class PeerProcesses:
    """The processes of other ranks."""

    def __init__(self, identities: Mapping[int, Sequence[int]]) -> None:
        """Take each rank's ``process_identity``, by rank; this process and those that cannot be seen are left out."""
        self.processes = {rank: process for rank, (pid, started) in identities.items() if (process := _process(pid, started)) is not None}

    def ended(self, ranks: Iterable[int]) -> set[int]:
        """The ranks among ``ranks`` whose processes have ended."""
        return {rank for rank in ranks if rank in self.processes and not _runs(self.processes[rank])}


def _process(pid: int, started_ms: int) -> psutil.Process | None:
    """Another rank's process; None if this rank cannot see it."""
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
