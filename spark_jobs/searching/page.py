"""Write the page of a search beside its trials: ``<workspace>/search/<id>/search.html``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sparkring.conf.schema import Config, HeldOutMetric
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.reporting.facts.words import metric, several
from sparkring.spark_jobs.reporting.page import render
from sparkring.spark_jobs.searching.charts import search_pictures
from sparkring.spark_jobs.searching.trials import State, Trial, ranked

NAME = "search.html"


def write_search(trials: Sequence[Trial], best: Trial | None, *, config: Config, url: str) -> str:
    """Write the page in place of an older one; returns its address.

    Args:
        trials: By number.
        best: The best of them, if one was trained to its end.
        config: Of the search.
        url: Folder of the trials' documents.
    Raises:
        StorageError: it cannot be written.
    """
    ended = [trial for trial in trials if trial.state != "begun"]
    pictures = search_pictures(ended, best, space=config.search.space, name=config.search.metric) if best else ()
    rows = [(trial, [value_text(trial.params[key]) for key in config.search.space]) for trial in ranked(ended, config.search.metric)]
    page = render("search.html.j2", name=config.name, metric_name=config.search.metric, keys=list(config.search.space), rows=rows,
                  pictures_of_search=pictures, outcome=outcome(ended, best, config.search.metric))
    store = open_store(url)
    store.put(NAME, page.encode("utf-8", errors="replace"))
    return store.path(NAME)


def outcome(ended: Sequence[Trial], best: Trial | None, name: HeldOutMetric) -> str:
    """What came of a search, in words."""
    states = Counter(trial.state for trial in ended)
    said: dict[State, str] = {"done": "trained to the end", "pruned": "ended early", "failed": "failed"}
    words = ", ".join(f"{states[state]} {text}" for state, text in said.items() if states[state])
    first = f"{several(len(ended), 'trial')}: {words}."
    if best is None:
        return f"{first} None can be named best."
    values = ", ".join(f"{key} {value_text(value)}" for key, value in best.params.items())
    return f"{first} The best is trial {best.number}: {name} {metric(best.value)} with {values}."


def value_text(value: Any) -> str:
    """A value as people write it: ``0.0123``, ``[64, 32]``, ``adamw``."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
