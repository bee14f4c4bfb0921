"""Progress of long work: the interface that jobs report to, and the reporter that shows nothing.

Jobs take a ``Progress`` and know nothing of terminals; ``sparkring/cli/terminal/console.py`` draws bars or plain lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Bar(Protocol):
    """One piece of work, whose total may be unknown."""

    def update(self, done: int, *, total: int | None = None, text: str = "") -> None:
        """Set ``done`` of ``total`` units; ``text`` is shown beside them, e.g. ``loss 0.41``."""
        ...


class Progress(Protocol):
    """Receives the reports of a job."""

    def stage(self, title: str, *, total: int | None = None) -> AbstractContextManager[Bar]:
        """Open a bar titled ``title``; it closes when the block ends or raises."""
        ...

    def note(self, text: str) -> None:
        """Show one line, e.g. that earlier work is reused."""
        ...


class SilentProgress:
    """Shows nothing: the default of all job functions."""

    @contextmanager
    def stage(self, title: str, *, total: int | None = None) -> Iterator[Bar]:
        """Open a bar that shows nothing."""
        yield _SilentBar()

    def note(self, text: str) -> None:
        """Show nothing."""


class _SilentBar:
    def update(self, done: int, *, total: int | None = None, text: str = "") -> None:
        """Show nothing."""


SILENT: Progress = SilentProgress()
