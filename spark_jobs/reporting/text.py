"""The top of the report as plain text, for a prompt and for front ends that show no HTML. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from sparkring.spark_jobs.reporting.facts.gather import Workspace
from sparkring.spark_jobs.reporting.facts.headline import headline, tiles

WIDTH = 100


def report_text(workspace: Workspace, *, title: str) -> str:
    """The headline, a table of the most important figures, and a line for each part that is missing."""
    return "\n".join(_lines(workspace, title))


def _lines(workspace: Workspace, title: str) -> Iterator[str]:
    yield from wrap(f"{title}: {headline(workspace)}", WIDTH)
    rows = [(tile.label, tile.value, tile.note) for tile in tiles(workspace)]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    for label, value, note in rows:
        yield f"  {label:<{widths[0]}}  {value:>{widths[1]}}  {note}".rstrip()
    for part in workspace.absent:
        yield f"  {part.what}: {part.why}; run `{part.command}`"
