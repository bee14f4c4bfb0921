"""``sparkring report``: one self-contained HTML file about what a workspace holds.

Needs neither Spark nor a ring; parts that are missing are named in the page with the command that makes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkring.conf.schema import Config
from sparkring.pipelines.data.store import open_store
from sparkring.spark_jobs.progress import SILENT, Progress
from sparkring.spark_jobs.reporting.gather import gather
from sparkring.spark_jobs.reporting.page import render_page

NAME = "report.html"


@dataclass(frozen=True)
class ReportResult:
    """What was written."""

    path: str
    """Address of the HTML file."""
    bytes: int
    absent: tuple[str, ...]
    """Parts of a complete report that were not there, e.g. ``evaluation``."""


def report(config: Config, *, progress: Progress = SILENT) -> ReportResult:
    """Write ``<workspace>/report.html`` from what is there, in place of an older one.

    Args:
        config: Names the workspace.
        progress: Where to show how far it is.
    Raises:
        ConfigError: the workspace is on a kind of storage that is not served.
    """
    store = open_store(config.workspace)
    with progress.stage("report", total=2) as bar:
        workspace = gather(config)
        bar.update(1, total=2, text="drawing")
        # A lone surrogate in a column's name is valid JSON and no valid UTF-8.
        page = render_page(workspace, config).encode("utf-8", errors="replace")
        store.put(NAME, page)
        bar.update(2, total=2)
    return ReportResult(store.path(NAME), len(page), tuple(part.what for part in workspace.absent))
