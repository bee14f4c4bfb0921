"""``sparkring report``: one self-contained HTML file about a run and its dataset, or about all retrainings of a workspace.

Needs neither Spark nor a ring. For each missing part the page names the command that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.output_file import require_writable_file
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.reporting.charts.step import step_picture
from sparkring.spark_jobs.reporting.charts.svg import as_file
from sparkring.spark_jobs.reporting.facts.gather import Workspace, gather
from sparkring.spark_jobs.reporting.facts.place import Place
from sparkring.spark_jobs.reporting.page import render_page
from sparkring.spark_jobs.reporting.retraining.page import write_retrainings
from sparkring.spark_jobs.run.place import with_run_if_any
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.tracking.following import tracked

NAME = "report.html"


@dataclass(frozen=True)
class ReportResult:
    """The report that was written."""

    path: str
    """Address of the HTML file."""
    bytes: int
    absent: tuple[str, ...]
    """Parts that are not there, e.g. ``evaluation``; of retrainings a sentence for each document that cannot be read."""


def report(config: ConfigLike, *, step_file: Path | None = None, retraining: bool = False, progress: Progress = SILENT,
           **keys: Any) -> ReportResult:
    """Write ``report.html`` into the run's folder from what that holds, replacing an older one; into the workspace if there is no run.

    Args:
        config: What ``load_config`` takes; names the run; see ``run/place.py``.
        step_file: Where to write the picture of a pipelined step as an SVG of its own.
        retraining: Write the page of the workspace's retrainings instead, ``retrain/report.html``; ``sparkring retrain`` does it, too.
        progress: Where to report.
        keys: Keys of the config that replace those of ``config``, e.g. ``workspace="runs/x"``.
    Raises:
        ConfigError: the workspace is on unsupported storage, it has no such run, or several and none of them is this config's, or there
            is no picture for ``step_file``.
    """
    if retraining:
        return _of_retrainings(config_of_job(report, config, keys), step_file, progress)
    config = with_run_if_any(config_of_job(report, config, keys), progress=progress)
    with tracked(config, progress=progress), progress.stage("report", total=2) as bar:
        workspace = gather(config)
        bar.update(1, total=2, text="drawing")
        if step_file is not None:
            require_writable_file(step_file)
            step_file.write_text(_step_file(workspace, config), encoding="utf-8")
        result = write_page(workspace, config)
        bar.update(2, total=2)
    return result


def write_page(workspace: Workspace, place: Place) -> ReportResult:
    """Write the page into the folder that the facts are from.

    Raises:
        StorageError: it cannot be written.
    """
    store = open_store(place.runs.removesuffix("/runs") if place.run is None else place.run_url)
    page = render_page(workspace, place).encode("utf-8", errors="replace")  # a lone surrogate in a column's name is valid JSON only
    store.put(NAME, page)
    return ReportResult(store.path(NAME), len(page), tuple(part.what for part in workspace.absent))


def _of_retrainings(config: Config, step_file: Path | None, progress: Progress) -> ReportResult:
    if step_file is not None:
        raise ConfigError("a step's picture is asked of a page of retrainings, which has none; leave out --step or --retraining.")
    with progress.stage("report", total=1) as bar:
        page = write_retrainings(config)
        bar.update(1, total=1)
    return ReportResult(page.path, page.bytes, page.gaps)


def _step_file(workspace: Workspace, config: Config) -> str:
    picture = step_picture(workspace.run.step) if workspace.run and workspace.run.step else None
    if picture is None:
        raise ConfigError(f"run {config.run} has no step in stages that could be drawn; train with several stages "
                          "(train.parallel.replicas) and at most a few hundred micro-batches.")
    return as_file(picture.svg)
