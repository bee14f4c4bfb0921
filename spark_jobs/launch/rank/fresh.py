"""A rank's process, however it came to be: what its ``RankProcess`` knows of it. ``FreshRank`` is one that imports all by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Protocol

import psutil


@dataclass(frozen=True, kw_only=True)
class RankPipes:
    """The rank's ends of the pipes between it and its task; file descriptors that are open in the task until the rank has them."""

    orders: int
    output: int
    reports: int

    def close(self) -> None:
        """Leave them to the rank."""
        for fd in astuple(self):
            os.close(fd)


class RunningRank(Protocol):
    """A running process that leads a process group of its own."""

    @property
    def pid(self) -> int:
        """Its process id, and its group's."""
        ...

    @property
    def note(self) -> str:
        """What there is to say about its end that its exit code does not tell."""
        ...

    def wait(self) -> int:
        """Wait for its end and end all that it has left behind; its exit code (negative: signal)."""
        ...


class FreshRank:
    """``python -m sparkring.spark_jobs.launch.rank.main``, a child of this process."""

    note = ""

    def __init__(self, device: str, *, env: Mapping[str, str], pipes: RankPipes) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sparkring.spark_jobs.launch.rank.main", str(pipes.reports), device],
            env=dict(env), pass_fds=[pipes.reports],
            stdin=pipes.orders, stdout=pipes.output, stderr=subprocess.STDOUT, start_new_session=True)

    @property
    def pid(self) -> int:
        """See ``RunningRank``."""
        return self._process.pid

    def wait(self) -> int:
        """See ``RunningRank``; its guard is among what it leaves behind."""
        code = self._process.wait()
        end_group(self.pid)
        return code


def end_group(leader: int) -> None:
    """SIGKILL to a rank and all that it started, as far as that is still there."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped (SIGSTOP) and not let go on."""
    return _status(pid) == psutil.STATUS_STOPPED


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for its parent to be told."""
    return _status(pid) in (psutil.STATUS_ZOMBIE, None)


def _status(pid: int) -> str | None:
    """Of a process that there is."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return None
