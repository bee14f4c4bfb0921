"""Write the page of a workspace's retrainings: ``<workspace>/retrain/report.html``."""

from __future__ import annotations

from dataclasses import dataclass

from sparkring.conf.schema import Config
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.reporting.page import render
from sparkring.spark_jobs.reporting.retraining.charts import drift_picture, retraining_pictures
from sparkring.spark_jobs.reporting.retraining.facts import Retrainings, day, headline, minute, signed, tiles
from sparkring.spark_jobs.reporting.retraining.gather import gather

FOLDER, NAME = "retrain", "report.html"


@dataclass(frozen=True)
class WrittenPage:
    """The page that was written."""

    path: str
    """Its address."""
    bytes: int
    gaps: tuple[str, ...]
    """Sentences about documents that cannot be read."""


def write_retrainings(config: Config) -> WrittenPage:
    """Write the page from the documents alone, in place of an older one.

    Raises:
        StorageError: the workspace cannot be read or written.
        DatasetError: a manifest of the dataset is damaged.
    """
    facts, store = gather(config), open_store(f"{config.workspace}/{FOLDER}")
    page = render_retrainings(facts, name=config.name).encode("utf-8", errors="replace")
    store.put(NAME, page)
    return WrittenPage(store.path(NAME), len(page), facts.gaps)


def render_retrainings(facts: Retrainings, *, name: str) -> str:
    """The page as HTML text; the same facts give the same text."""
    return render("retraining.html.j2", name=name, facts=facts, headline=headline(facts), tiles=tiles(facts), day=day, minute=minute,
                  signed=signed, retraining_pictures=retraining_pictures(facts), drift_picture=drift_picture(facts))
