"""Write the page of a cross-validation: ``<workspace>/cross-validation.html``."""

from __future__ import annotations

from collections.abc import Sequence

from sparkring.pipelines.data.stores.base import Store
from sparkring.spark_jobs.reporting.folds.charts import fold_pictures
from sparkring.spark_jobs.reporting.folds.facts import FoldResult, spreads, verdict
from sparkring.spark_jobs.reporting.page import render

NAME = "cross-validation.html"


def write_folds(folds: Sequence[FoldResult], *, name: str, store: Store) -> str:
    """Write the page in place of an older one; returns its address.

    Args:
        folds: The runs.
        name: The config's.
        store: The workspace.
    Raises:
        StorageError: it cannot be written.
    """
    page = render("folds.html.j2", name=name, folds=folds, spreads=spreads(folds), verdict=verdict(folds),
                  pictures_of_folds=fold_pictures(folds))
    store.put(NAME, page.encode("utf-8", errors="replace"))
    return store.path(NAME)
