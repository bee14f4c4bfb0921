"""A Spark driver in a process of its own, told what to run: ``driver.ring(functions.introduce, num_ranks=2)``.

Its own process, because a Python process has one Spark context at a time, and the ring is tested on several masters; and so
that it can be interrupted. ``ring_driver_main.py`` is what runs there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sparkring.pipelines.parallel.shared_memory import named_files
from sparkring.spark_jobs.launch.rank.environment import process_name

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 90.0
"""Seconds for anything that should be over in a few, on a machine that has other work."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a launch: a result, or an error."""

    seconds: float
    results: list[Any] = field(default_factory=list)
    error: str = ""
    """Class name of the error, with its bases': ``RankDied RingError ...``."""
    message: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Driver:
    """The running driver."""

    def __init__(self, session: Mapping[str, str], *, folder: Path, environment: Mapping[str, str]) -> None:
        self._log = folder / "driver.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.ring_driver_main", json.dumps(session)], cwd=ROOT,
                env={**os.environ, **environment, "PYSPARK_PYTHON": environment.get("PYSPARK_PYTHON", sys.executable)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._next() == {"ready": True}

    @property
    def pid(self) -> int:
        """Of the driver's Python process; the JVM, the tasks and the ranks are its descendants."""
        return self._process.pid

    @property
    def log(self) -> str:
        """What the driver, and in local mode its executors, wrote to standard error."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def ring(self, fn: Callable[..., Any], *args: Any, num_ranks: int, **config: Any) -> Outcome:
        """Run a function of ``ring_functions`` on ranks and wait for what comes of it."""
        self.begin(fn, *args, num_ranks=num_ranks, **config)
        return self.outcome()

    def begin(self, fn: Callable[..., Any], *args: Any, num_ranks: int, **config: Any) -> None:
        """Start a launch."""
        self.tell({"do": "ring", "fn": fn.__name__, "args": args, "num_ranks": num_ranks, "config": config})

    def outcome(self) -> Outcome:
        """Of the launch begun last."""
        return Outcome(**self._next())

    def tell(self, command: Mapping[str, Any]) -> None:
        """Send any command that ``ring_driver_main.py`` knows."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def send_signal(self, number: int) -> None:
        """To the Python process alone; SIGINT is Ctrl-C."""
        self._process.send_signal(number)

    def close(self) -> None:
        """End the driver and all that is left of its group."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(DEADLINE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _next(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise AssertionError(f"the driver said nothing for {DEADLINE_S:g} s; its log ends:\n{self.log[-3000:]}") from None
        assert line, f"the driver ended; its log ends:\n{self.log[-3000:]}"
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def driver(folder: Path, session: Mapping[str, str], *, environment: Mapping[str, str] | None = None) -> Iterator[Driver]:
    """A driver with a session as given: ``master`` or ``remote``, and ``spark.*`` properties by name."""
    running = Driver(session, folder=folder, environment={**bytecode(folder), **(environment or {})})
    try:
        yield running
    finally:
        running.close()


def bytecode(folder: Path) -> dict[str, str]:
    """Variables that let processes keep compiled modules, where torch was installed without: its import takes a third then."""
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.cached is not None and Path(torch.cached).exists():
        return {}
    return {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}


def marks(folder: Path, *, num_ranks: int) -> list[dict[str, Any]]:
    """What ``ring_functions.mark`` left, by rank, once all ranks have."""
    wait_until(lambda: len(list(folder.glob("rank-*.json"))) >= num_ranks, f"{num_ranks} ranks to start")
    return [json.loads(path.read_text(encoding="ascii")) for path in sorted(folder.glob("rank-*.json"))]


def assert_no_process_left(token: str) -> None:
    """All processes of the launch, and all that they started, must be gone soon."""
    wait_until(lambda: not ring_processes(token), f"the processes of ring {token} to end")


def ring_processes(token: str) -> list[str]:
    """Command lines of the processes that carry the launch's token."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SPARKRING_TOKEN") == token or process.name() == process_name(token):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue  # it ended meanwhile, or is not ours to look into
    return found


def shared_names(token: str) -> list[str]:
    """What carries the launch's token in /dev/shm."""
    return sorted(path.name for path in named_files.FOLDER.glob(f"*{token}*"))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for ``condition``, and fail with ``what`` if it does not come."""
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until, f"waited {DEADLINE_S:g} s for {what}"
        time.sleep(0.05)
