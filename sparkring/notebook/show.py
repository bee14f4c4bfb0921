"""``sparkring.show``: a run's report in a notebook, or its figures as text at a prompt and in a program.

The page is put into a frame of its own, where nothing may run: neither it nor the notebook can change the looks of the other.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.notebook.front_end import display, in_notebook
from sparkring.spark_jobs.report import NAME, ReportResult, write_page
from sparkring.spark_jobs.reporting.facts.gather import gather
from sparkring.spark_jobs.reporting.facts.place import Place, StoredRun
from sparkring.spark_jobs.reporting.page import render_page
from sparkring.spark_jobs.reporting.text import report_text
from sparkring.spark_jobs.run.place import with_run_if_any
from sparkring.spark_jobs.train import TrainResult

Showable = TrainResult | ReportResult | ConfigLike
"""What can be shown: the result of ``train`` or ``report``, a run's folder or URL, or a config."""


def show(what: Showable, *, height_px: int = 800, **keys: Any) -> None:
    """Show the report of a run, as it is now: in a notebook as a page, elsewhere as text, with the page in a file.

    A run that is still training can be shown too. In a notebook nothing is written.

    Args:
        what: The result of ``train`` or ``report``; a run's folder or URL, ``<workspace>/runs/<name>``; or a config, as ``report``
            takes it.
        height_px: Height of the page's frame in a notebook.
        keys: Keys of the config that replace those of ``what``, e.g. ``run="wide"``.
    Raises:
        ConfigError: no run is there, or ``what`` does not say which one is meant.
        StorageError: outside a notebook, the page cannot be written to the run's folder.
    """
    place = _place_of(what, keys)
    workspace = gather(place)
    text = report_text(workspace, title=place.name)
    if in_notebook():
        display(_frame(render_page(workspace, place, embedded=True), title=place.name, height_px=height_px), text)
        return
    sys.stdout.write(f"{text}\nreport: {write_page(workspace, place).path}\n")


def _place_of(what: Any, keys: dict[str, Any]) -> Place:
    """The run that is meant, or a workspace without one.

    Raises:
        ConfigError: ``what`` is nothing that can be shown, or keys are given beside a run.
    """
    folder = _folder_of(what)
    if folder is None and not isinstance(what, str | PathLike | Mapping | Config):
        raise ConfigError(f"show() got a {type(what).__name__}, which does not say which run it is of; give the result of train, a run's "
                          "folder or a config.")
    if folder is None:
        return with_run_if_any(config_of_job(show, what, keys))
    if keys:
        raise ConfigError(f"show() got {', '.join(keys)} beside the run {folder}, whose config is fixed; leave them out, or give a config "
                          "in place of the run.")
    return StoredRun.at(folder)


def _folder_of(what: Any) -> str | None:
    """The folder of the run that ``what`` is of; None if it is a config or nothing of the kind."""
    if isinstance(what, TrainResult):
        return what.url
    if isinstance(what, ReportResult):
        return what.path.removesuffix(f"/{NAME}")
    is_folder = isinstance(what, str | PathLike) and fspath(what).rstrip("/").split("/")[-2:-1] == ["runs"] and not Path(what).is_file()
    return fspath(what) if is_folder else None


def _frame(page: str, *, title: str, height_px: int) -> str:
    """The page as a frame that runs no script and can be told from the notebook's own origin."""
    return (f'<iframe srcdoc="{escape(page)}" sandbox="" title="Report of {escape(title)}" loading="lazy" '
            f'style="width: 100%; height: {height_px}px; border: 1px solid rgba(128, 128, 128, 0.4); border-radius: 8px"></iframe>')
