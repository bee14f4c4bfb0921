"""A Spark task's handle on the rank process it started: give it its order, hear from it, end it with all it started.

The process is ``python -m sparkring.spark_jobs.launch.rank``, fresh and leader of its own process group. Three pipes join the
two: orders in, reports out, and its output, which goes line by line to the executor's log with the rank's name before it.
The order pipe is also the lifeline: when the task's process is gone, however it went, the rank's guard ends the group.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, TypeAlias

from sparkring.spark_jobs.launch.framing import read_message, write_message

TAIL_LINES = 20
EXIT_GRACE_S = 10.0
"""Seconds that a rank with a result may take to leave."""
LAST_WORDS_S = 1.0
"""Seconds to read what a dead rank left in its pipes."""

Report: TypeAlias = dict[str, Any]


class RankProcess:
    """One running rank process.

    Args:
        device: ``cpu`` or ``cuda``: whether it is to look for its GPU first.
        env: Its whole environment.
        on_report: Called with each report, from a thread.
        on_exit: Called once with the exit code (negative: signal), after the last report, from a thread.
    """

    def __init__(self, device: str, *, env: Mapping[str, str], on_report: Callable[[Report], None], on_exit: Callable[[int], None]) -> None:
        self.label = "rank ?"
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        reports_fd, ranks_fd = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sparkring.spark_jobs.launch.rank", str(ranks_fd), device], env=dict(env), pass_fds=[ranks_fd],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        os.close(ranks_fd)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders = self._process.stdin
        self._listeners = [_in_thread(self._forward_output, self._process.stdout),
                           _in_thread(_hear, os.fdopen(reports_fd, "rb"), on_report)]
        self._exited = _in_thread(self._await_exit, on_exit)

    @property
    def tail(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self._tail)

    def send(self, *messages: bytes) -> None:
        """Send messages in order, without waiting: a pipe holds 64 KiB, and a rank reads only once it has imported torch."""
        _in_thread(self._write, messages)

    def leave(self) -> None:
        """Let a rank that has reported its result go."""
        self.send(b"")
        self._exited.join(EXIT_GRACE_S)
        self.stop()

    def ask_to_stop(self) -> None:
        """SIGTERM to the rank: one that trains saves together with the others after the step that they are in; others end."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)

    def stop(self) -> None:
        """End the rank and all that it started; nothing happens where that is done.

        Without SIGTERM first: that asks a rank to save after its step, which it cannot finish without the others.
        """
        if self._exited.is_alive():
            self._signal_group(signal.SIGKILL)
            self._exited.join(2 * LAST_WORDS_S)

    def _write(self, messages: tuple[bytes, ...]) -> None:
        with suppress(BrokenPipeError):  # it is gone, which on_exit tells
            for message in messages:
                write_message(self._orders, message)

    def _await_exit(self, on_exit: Callable[[int], None]) -> None:
        code = self._process.wait()
        self._signal_group(signal.SIGKILL)  # its guard, and whatever else it left behind
        for listener in self._listeners:
            listener.join(LAST_WORDS_S)
        with suppress(BrokenPipeError):
            self._orders.close()
        on_exit(code)

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _forward_output(self, output: IO[bytes]) -> None:
        # As text with universal newlines: a progress bar ends its lines with a carriage return alone.
        for line in io.TextIOWrapper(output, encoding="utf-8", errors="replace"):
            self._tail.append(line.rstrip("\n"))
            sys.stderr.write(f"[{self.label}] {line}")
            sys.stderr.flush()


def _hear(reports: IO[bytes], on_report: Callable[[Report], None]) -> None:
    with reports:
        while (message := read_message(reports)) is not None:
            on_report(json.loads(message))


def _in_thread(work: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread
