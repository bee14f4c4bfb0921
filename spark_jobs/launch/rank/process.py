"""A Spark task's handle on the rank process it started: give it its order, hear from it, end it with all it started.

The process leads a process group of its own. It is forked off the server that this worker keeps (``forked.py``), or fresh
(``fresh.py``). Three pipes join the two: orders in, reports out, and its output, which goes line by line to the executor's
log with the rank's name before it. When the task's process is gone for any reason, a guard ends the group: the server, or a fresh
rank's own guard, whose lifeline is the order pipe.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, TypeAlias

from sparkring.spark_jobs.launch.rank.forked import ForkedRank, ForkUnavailable, KeptServer, RankServer
from sparkring.spark_jobs.launch.rank.framing import read_message, write_message
from sparkring.spark_jobs.launch.rank.fresh import FreshRank, RankPipes, RunningRank, end_group, has_ended, is_suspended

TAIL_LINES = 20
EXIT_GRACE_S = 10.0
"""Seconds that a rank with a result may take to leave."""
LAST_WORDS_S = 1.0
"""Seconds to read what a dead rank left in its pipes, and for a fork."""

Report: TypeAlias = dict[str, Any]


class RankProcess:
    """One running rank process.

    Args:
        device: ``cpu`` or ``cuda``; for ``cuda`` the rank first checks its GPU.
        env: Its whole environment.
        on_report: Called with each report, from a thread.
        on_exit: Called once with the exit code (negative: signal), after the last report, from a thread.
        kept: Keeps the server to fork it off; None for a fresh process.
    """

    def __init__(self, device: str, *, env: Mapping[str, str], on_report: Callable[[Report], None], on_exit: Callable[[int], None],
                 kept: KeptServer | None = None) -> None:
        self.label = "rank ?"
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._rank: RunningRank | None = None
        self._began = threading.Event()
        """Set once the rank has started or has failed to start."""
        self._imported = threading.Event()
        self._asked_to_stop = self._ending = False
        its_orders, orders = os.pipe()
        output, its_output = os.pipe()
        reports, its_reports = os.pipe()
        self._orders = os.fdopen(orders, "wb")
        self._listeners = [_in_thread(self._forward_output, os.fdopen(output, "rb")),
                           _in_thread(self._hear, os.fdopen(reports, "rb"), on_report)]
        self._kept = kept
        self._server = None if kept is None else self._server_of(kept, env)
        self._exited = _in_thread(self._live, device, env, RankPipes(orders=its_orders, output=its_output, reports=its_reports), on_exit)

    @property
    def tail(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self._tail)

    @property
    def has_imported(self) -> bool:
        """Whether the rank has imported torch and Horovod."""
        return self._imported.is_set()

    @property
    def is_suspended(self) -> bool:
        """Whether the rank is suspended, or the server that must fork it or report its end."""
        if not self._exited.is_alive():
            return False
        awaited = self._server if self._rank is None or has_ended(self._rank.pid) else self._rank
        return awaited is not None and is_suspended(awaited.pid)

    def send(self, *messages: bytes) -> None:
        """Send messages in order, without waiting: a pipe holds 64 KiB, and a rank reads only once it has imported torch."""
        _in_thread(self._write, messages)

    def let_go(self) -> None:
        """Let a rank that has reported its result leave by itself; end it if it does not."""
        self.send(b"")
        self._exited.join(EXIT_GRACE_S)
        self.end()

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the rank. If it trains, it saves after the current step, together with the others; if not, it ends."""
        self._asked_to_stop = True
        if self._rank is not None and self._exited.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self._rank.pid, signal.SIGTERM)

    def end(self) -> None:
        """End (SIGKILL) the rank and all that it started; a second call does nothing.

        It sends no SIGTERM first: that asks a rank to save after its step, which it cannot finish without the others.
        """
        self._ending = True
        if self._server is not None and not self._began.wait(LAST_WORDS_S if self._server.has_forked else 0):
            self._server.end()  # it still imports
        self._began.wait(LAST_WORDS_S)
        if self._rank is not None and self._exited.is_alive():
            end_group(self._rank.pid)
        self._exited.join(2 * LAST_WORDS_S)

    def _server_of(self, kept: KeptServer, env: Mapping[str, str]) -> RankServer | None:
        try:
            return kept.serving(env)
        except OSError as error:
            self._say(f"cannot start a server to fork ranks off: {error}")
            return None

    def _write(self, messages: tuple[bytes, ...]) -> None:
        with suppress(BrokenPipeError, ValueError):  # the rank is gone, which on_exit reports
            for message in messages:
                write_message(self._orders, message)

    def _live(self, device: str, env: Mapping[str, str], pipes: RankPipes, on_exit: Callable[[int], None]) -> None:
        """Start the rank, wait for its end, and report the end."""
        try:
            self._rank = self._start(device, env, pipes)
        except (OSError, ForkUnavailable) as error:
            if not self._ending:
                self._say(f"cannot start this rank's process: {error}")
        finally:
            pipes.close()
            self._began.set()
        if self._asked_to_stop:
            self.ask_to_stop()
        code = -signal.SIGKILL if self._rank is None else self._rank.wait()
        for listener in self._listeners:
            listener.join(LAST_WORDS_S)
        with suppress(BrokenPipeError):
            self._orders.close()
        if self._rank is not None and self._rank.note:
            self._say(self._rank.note)
        on_exit(code)

    def _start(self, device: str, env: Mapping[str, str], pipes: RankPipes) -> RunningRank:
        if self._kept is not None and self._server is not None:
            try:
                return ForkedRank(self._server, device, env=env, pipes=pipes)
            except ForkUnavailable as problem:
                if self._ending:
                    raise
                self._kept.give_up(self._server)
                self._say(f"ranks of this executor's worker start as fresh processes, seconds later than forked ones: {problem}")
        return FreshRank(device, env=env, pipes=pipes)

    def _hear(self, reports: IO[bytes], on_report: Callable[[Report], None]) -> None:
        with reports:
            while (message := read_message(reports)) is not None:
                report: Report = json.loads(message)
                if report["kind"] == "imported":
                    self._imported.set()
                else:
                    on_report(report)

    def _forward_output(self, output: IO[bytes]) -> None:
        # As text with universal newlines: a progress bar ends its lines with a carriage return alone.
        for line in io.TextIOWrapper(output, encoding="utf-8", errors="replace"):
            self._say(line.rstrip("\n"))

    def _say(self, line: str) -> None:
        self._tail.append(line)
        sys.stderr.write(f"[{self.label}] {line}\n")
        sys.stderr.flush()


def _in_thread(work: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread
