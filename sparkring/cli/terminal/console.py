"""Progress for people: bars in a terminal, one plain line every few seconds elsewhere.

Writes to stderr, so that stdout holds results only. Jobs know nothing of this module; they report to a ``Progress``
(progress.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from sparkring.cli.terminal.interrupt import interrupted
from sparkring.errors import Stopped
from sparkring.spark_jobs.spark.progress import Bar, Progress

LINE_EVERY_S = 5.0


def console_progress() -> Progress:
    """Bars if both stdout and stderr are terminals, plain lines otherwise (a pipe, a log, a CI job)."""
    console = Console(stderr=True)
    return TerminalProgress(console) if console.is_interactive and sys.stdout.isatty() else PlainProgress(sys.stderr)


class TerminalProgress:
    """One bar a stage; finished bars stay in sight. Stages may be nested."""

    def __init__(self, console: Console) -> None:
        self._bars = RichProgress(
            TextColumn("{task.description}"), BarColumn(bar_width=30), TaskProgressColumn(), TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[text]}"), console=console, refresh_per_second=4)
        self._open = 0

    @contextmanager
    def stage(self, title: str, *, total: int | None = None) -> Iterator[Bar]:
        """Draw a bar while the block runs; full at its end, red if it raised."""
        if self._open == 0:
            self._bars.start()
        self._open += 1
        task = self._bars.add_task(escape(title), total=total, text="")
        try:
            yield _TerminalBar(self._bars, task)
        except BaseException:
            self._bars.update(task, description=f"[red]{escape(title)}")
            self._bars.stop_task(task)
            raise
        else:
            self._fill(task)
        finally:
            self._open -= 1
            if self._open == 0:
                self._bars.stop()
                for finished in self._bars.task_ids:  # they stay on the screen, and the next stage starts below them
                    self._bars.remove_task(finished)

    def note(self, text: str) -> None:
        """Print one line above the bars."""
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _fill(self, task: TaskID) -> None:
        total = next(entry.total for entry in self._bars.tasks if entry.id == task) or 1
        self._bars.update(task, total=total, completed=total)


class _TerminalBar:
    def __init__(self, bars: RichProgress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def update(self, done: int, *, total: int | None = None, text: str = "") -> None:
        """Move the bar."""
        self._bars.update(self._task, completed=done, total=total, text=escape(text))


class PlainProgress:
    """Lines without control characters: ``train: 45% (900/2000) loss 0.41``, then ``train: done in 62.1 s``."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock

    @contextmanager
    def stage(self, title: str, *, total: int | None = None) -> Iterator[Bar]:
        """Write a line when the block starts and ends, and every few seconds how far it is."""
        start = self._clock()
        self.note(f"{title} ...")
        try:
            yield _PlainBar(self, title, total=total, clock=self._clock)
        except BaseException as error:
            how = "stopped" if interrupted() or isinstance(error, Stopped | KeyboardInterrupt) else "failed"
            self.note(f"{title}: {how} after {self._clock() - start:.1f} s")
            raise
        self.note(f"{title}: done in {self._clock() - start:.1f} s")

    def note(self, text: str) -> None:
        """Write one line at once."""
        self._stream.write(text + "\n")
        self._stream.flush()


class _PlainBar:
    def __init__(self, lines: PlainProgress, title: str, *, total: int | None, clock: Callable[[], float]) -> None:
        self._lines, self._title, self._total, self._clock = lines, title, total, clock
        self._next_line = clock() + LINE_EVERY_S

    def update(self, done: int, *, total: int | None = None, text: str = "") -> None:
        """Write a line if the last one is old enough."""
        self._total = total if total is not None else self._total
        if self._clock() < self._next_line:
            return
        self._next_line = self._clock() + LINE_EVERY_S
        share = f"{100 * done // self._total}% ({done}/{self._total})" if self._total else str(done)
        self._lines.note(f"{self._title}: {share} {text}".rstrip())
