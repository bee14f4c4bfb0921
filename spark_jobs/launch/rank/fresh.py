"""A rank's process as ``RankProcess`` sees it, forked or fresh. ``FreshRank`` is a fresh one, which does all imports itself."""

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
        """Close the task's copies, once the rank has its own."""
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
        """An explanation of its end, if the exit code is not enough; else empty."""
        ...

    def wait(self) -> int:
        """Wait for its end, end all that it has left behind, and return its exit code (negative: signal)."""
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
        """See ``RunningRank``; this ends its guard too."""
        code = self._process.wait()
        end_group(self.pid)
        return code


def end_group(leader: int) -> None:
    """Send SIGKILL to a rank and its process group, if any of it is left."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def is_suspended(pid: int) -> bool:
    """Whether a process is suspended: it got SIGSTOP and was not continued."""
    return _status(pid) == psutil.STATUS_STOPPED


def has_ended(pid: int) -> bool:
    """Whether a process is gone or a zombie."""
    return _status(pid) in (psutil.STATUS_ZOMBIE, None)


def _status(pid: int) -> str | None:
    """The status of a process, or None if it is gone."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return None
