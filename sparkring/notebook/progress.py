"""Progress in a notebook: one block of the cell's output, redrawn a few times a second; what stays in the file is its last state.

HTML's own bars follow the theme of the page. No widgets: they would need a package in the server too, and leave nothing in the file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape

from sparkring.cli.terminal.interrupt import interrupted
from sparkring.errors import Stopped
from sparkring.notebook.front_end import Block
from sparkring.spark_jobs.reporting.facts.words import duration
from sparkring.spark_jobs.spark.progress import Bar

REDRAW_S = 0.5
"""Seconds between two drawings of a bar that moves."""
MARKS = {"runs": "", "done": "&#10003;", "stopped": "stopped", "failed": "failed"}


@dataclass
class _Line:
    """A stage or a note."""

    title: str
    began: float = 0.0
    ended: float | None = None
    done: int = 0
    total: int | None = None
    text: str = ""
    state: str = "runs"
    is_note: bool = False


class NotebookProgress:
    """One line a stage, with a bar, and one a note, in the order in which they came."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, block: Callable[[str, str], Block] = Block) -> None:
        self._clock, self._make = clock, block
        self._block: Block | None = None
        self._lines: list[_Line] = []
        self._next_drawing = 0.0
        self._lock = threading.Lock()
        """Bars are moved from threads."""

    @contextmanager
    def stage(self, title: str, *, total: int | None = None) -> Iterator[Bar]:
        """Draw a bar while the block runs; full at its end, and marked if it raised."""
        line = _Line(title, began=self._clock(), total=total)
        self._add(line)
        try:
            yield _NotebookBar(self, line)
        except BaseException as error:
            line.state = "stopped" if interrupted() or isinstance(error, Stopped | KeyboardInterrupt) else "failed"
            raise
        else:
            line.state, line.done = "done", line.total or line.done
        finally:
            line.ended = self._clock()
            self.draw()

    def note(self, text: str) -> None:
        """Add a line of text."""
        self._add(_Line(text, is_note=True))

    def moved(self) -> None:
        """Draw again, if the last drawing is old enough."""
        if self._clock() >= self._next_drawing:
            self.draw()

    def draw(self) -> None:
        """Draw all lines as they are now."""
        with self._lock:
            self._next_drawing = self._clock() + REDRAW_S
            html = f'<table style="border: 0; margin: 0">{"".join(map(self._row, self._lines))}</table>'
            text = "\n".join(map(self._words, self._lines))
            if self._block is None:
                self._block = self._make(html, text)
            else:
                self._block.replace(html, text)

    def _add(self, line: _Line) -> None:
        self._lines.append(line)
        self.draw()

    def _row(self, line: _Line) -> str:
        left = "text-align: left; padding: 0.1em 1em 0.1em 0; background: none; white-space: nowrap"
        if line.is_note:
            return f'<tr><td colspan="4" style="{left}; white-space: normal">{escape(line.title)}</td></tr>'
        where = f'value="{line.done}" max="{line.total}"' if line.total else 'value="1" max="1"' if line.state == "done" else ""
        bar = f'<progress {where} style="width: 14em" aria-label="{escape(line.title)}"></progress>'
        taken = f"{duration(self._seconds(line))} {MARKS[line.state]}"
        cells = (escape(line.title), f"{bar} {self._share(line)}", taken, escape(line.text))
        return "<tr>" + "".join(f'<td style="{left}">{cell}</td>' for cell in cells) + "</tr>"

    def _words(self, line: _Line) -> str:
        if line.is_note:
            return line.title
        state = "" if line.state == "runs" else f", {line.state}"
        return f"{line.title}: {self._share(line)} in {duration(self._seconds(line))}{state} {line.text}".rstrip()

    def _seconds(self, line: _Line) -> float:
        return (self._clock() if line.ended is None else line.ended) - line.began

    @staticmethod
    def _share(line: _Line) -> str:
        if line.total:
            return f"{100 * min(line.done, line.total) // line.total}%"
        return "100%" if line.state == "done" else str(line.done or "")


class _NotebookBar:
    def __init__(self, lines: NotebookProgress, line: _Line) -> None:
        self._lines, self._line = lines, line

    def update(self, done: int, *, total: int | None = None, text: str = "") -> None:
        """Move the bar."""
        self._line.done, self._line.text = done, text
        self._line.total = total if total is not None else self._line.total
        self._lines.moved()
