"""Server processes of a test: started with a log of their own, awaited by what they say or answer, ended with the block."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

DEADLINE_S = 60.0
T = TypeVar("T")


@dataclass(frozen=True)
class Daemon:
    """A running server and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self, pattern: str) -> str:
        """The first group of ``pattern``, once the log has it."""
        def look() -> str | None:
            found = re.search(pattern, self.log.read_text(encoding="utf-8", errors="replace"))
            return found.group(1) if found else None

        return self.until(look, what=repr(pattern))

    def until(self, look: Callable[[], T | None], *, what: str, within_s: float = DEADLINE_S) -> T:
        """What ``look`` returns, once it is not None; fails when the server ends or the deadline passes."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            found = look()
            if found is not None:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        state = f"it ended with code {self.process.returncode}" if self.process.poll() is not None else f"waited {within_s:g} s"
        raise AssertionError(f"{self.log.name}: no {what}, {state}; its log ends:\n{self.log.read_text(encoding='utf-8')[-3000:]}")


@contextmanager
def daemon(command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str] | None = None) -> Iterator[Daemon]:
    """Run a server for the length of the block; it and all that it started end with it.

    Args:
        command: Program and arguments.
        log: File for stdout and stderr.
        environment: Variables on top of this process's own.
    """
    with log.open("wb") as out:
        process = subprocess.Popen([str(part) for part in command], env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=out, start_new_session=True)
    try:
        yield Daemon(process, log)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
