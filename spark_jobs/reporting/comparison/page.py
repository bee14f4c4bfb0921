"""Write the page of strategies side by side: ``<workspace>/comparison.html``."""

from __future__ import annotations

from collections.abc import Sequence

from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.reporting.comparison.charts import comparison_pictures
from sparkring.spark_jobs.reporting.comparison.facts import Compared, verdict
from sparkring.spark_jobs.reporting.page import render

NAME = "comparison.html"


def write_comparison(runs: Sequence[Compared], *, name: str, workspace: str) -> str:
    """Write the page in place of an older one; returns its address.

    Raises:
        StorageError: it cannot be written.
    """
    page = render("comparison.html.j2", name=name, runs=runs, verdict=verdict(runs), pictures_of_runs=comparison_pictures(runs),
                  metrics=sorted({key for run in runs for key in run.held_out}))
    store = open_store(workspace)
    store.put(NAME, page.encode("utf-8", errors="replace"))
    return store.path(NAME)
