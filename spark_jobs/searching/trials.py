"""The trials of a search, as documents of the workspace: one each, written when it begins and when it ends, so that a search resumes.

    <workspace>/search/<id>/0.json, 1.json, ...       the id names what is searched: another space or metric is another search
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import ConfigDict

from sparkring.conf.schema import Config, HeldOutMetric
from sparkring.pipelines.data.stores.base import numbered
from sparkring.pipelines.data.stores.documents import StrictModel, read_model
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.evaluation.score import signed
from sparkring.spark_jobs.run.identity import FREE_TO_CHANGE

State = Literal["begun", "done", "pruned", "failed"]


class Trial(StrictModel):
    """One trial."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")  # a metric may be NaN

    number: int
    params: dict[str, Any]
    """Key -> value."""
    state: State = "begun"
    run: str = ""
    """Its run, once it has one."""
    value: float | None = None
    """The metric of its best epoch."""
    epochs: tuple[float, ...] = ()
    """The metric after each epoch."""
    error: str = ""
    """Why it failed."""
    seconds: float = 0.0


def ranked(trials: Iterable[Trial], metric: HeldOutMetric) -> list[Trial]:
    """The best first, those without a value last."""
    return sorted(trials, key=lambda trial: (trial.value is None, signed(trial.value or 0.0, metric), trial.number))


class Trials:
    """The documents of one search."""

    def __init__(self, config: Config, *, content_id: str) -> None:
        """Read nothing yet.

        Args:
            config: Names the workspace and what is searched.
            content_id: Of the dataset version that trials train on.
        """
        searched = {key: values.model_dump(mode="json") for key, values in config.search.space.items()}
        base = [config.model.model_dump(mode="json"), config.train.model_dump(mode="json", exclude=FREE_TO_CHANGE)]
        of_fold = [] if config.fold is None else [config.fold]
        what = json.dumps([searched, config.search.metric, content_id, base, *of_fold], sort_keys=True)
        self._store = open_store(f"{config.workspace}/search/{hashlib.sha256(what.encode()).hexdigest()[:8]}")

    @property
    def url(self) -> str:
        """Folder of the documents."""
        return self._store.url

    def read(self) -> list[Trial]:
        """All trials that were begun, by number.

        Raises:
            DocumentDamaged: a document cannot be read.
        """
        return [read_model(self._store, f"{number}.json", Trial, expected="a trial of a search",
                           remedy="delete it: that trial is then done again") for number in sorted(numbered(self._store, ""))]

    def write(self, trial: Trial) -> None:
        """Write a trial, in place of what was known of it."""
        self._store.put(f"{trial.number}.json", trial.model_dump_json(indent=1).encode())
