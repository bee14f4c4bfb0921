"""Render facts and pictures as one self-contained HTML page: no script, no font, no image file. Pure.

Jinja's autoescape covers every text from data, and a content security policy in the page forbids scripts and outside
resources even if escaping should fail.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from sparkring.spark_jobs.reporting.charts.importance import importance_picture
from sparkring.spark_jobs.reporting.charts.palette import SHADES
from sparkring.spark_jobs.reporting.charts.quality import quality_pictures
from sparkring.spark_jobs.reporting.charts.run import learning_pictures, time_pictures
from sparkring.spark_jobs.reporting.charts.step import step_picture
from sparkring.spark_jobs.reporting.facts import words
from sparkring.spark_jobs.reporting.facts.gather import Workspace
from sparkring.spark_jobs.reporting.facts.headline import headline, tiles
from sparkring.spark_jobs.reporting.facts.place import Place
from sparkring.spark_jobs.reporting.facts.provenance import provenance

LONG_TABLE = 60
"""A longer table is collapsed at first."""


def render_page(workspace: Workspace, place: Place, *, embedded: bool = False) -> str:
    """Return the report as HTML text; the same facts give the same text.

    Args:
        workspace: The facts.
        place: Where they are from.
        embedded: For a frame in another page: without links to its own sections, which some browsers look for in that page.
    """
    quality, run, explained = workspace.quality, workspace.run, workspace.explained
    return render(
        "page.html.j2", embedded=embedded,
        name=place.name, workspace=workspace, headline=headline(workspace), tiles=tiles(workspace),
        provenance=provenance(workspace, run=place.run), absent={part.what: part for part in workspace.absent},
        quality_pictures=quality_pictures(quality) if quality else (),
        importance_picture=importance_picture(explained.importance) if explained and explained.importance else None,
        learning_pictures=learning_pictures(run) if run else (), time_pictures=time_pictures(run) if run else (),
        step_picture=step_picture(run.step) if run and run.step else None,
        scores_url=place.scores if place.run else "")


def render(template: str, *, embedded: bool = False, **facts: Any) -> str:
    """Fill a template of this folder; all of them share the layout, the style and the words."""
    environment = Environment(loader=FunctionLoader(_template), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(count=words.count, duration=words.duration, metric=words.metric, share=words.share, seconds=words.seconds,
                               size=words.size)
    return environment.get_template(template).render(shades=SHADES, long_table=LONG_TABLE, embedded=embedded, **facts)


def _template(name: str) -> str:
    """Templates are package data, read in a way that works from inside a zip on an executor too."""
    return resources.files("sparkring.spark_jobs.reporting").joinpath(name).read_text(encoding="utf-8")
