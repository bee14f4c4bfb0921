"""The trials of a search, as documents of the workspace: one each, written when it begins and when it ends, so that a search resumes.

    <workspace>/search/<id>/0.json, 1.json, ...       the id names what is searched (identity.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

from pydantic import ConfigDict

from sparkring.conf.schema import Config, HeldOutMetric
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.stores.base import numbered
from sparkring.pipelines.data.stores.documents import StrictModel, read_model
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.writable import write_errors_explained
from sparkring.pipelines.training.evaluation.score import signed
from sparkring.spark_jobs.searching.identity import name_of_search

LOCK = ".lock"
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

    def __init__(self, config: Config, manifest: Manifest) -> None:
        """Read no trial yet.

        Args:
            config: Names the workspace and what is searched.
            manifest: Of the dataset version that trials train on.
        Raises:
            ConfigError: there are no such weights to start from as it names.
        """
        self._store = open_store(f"{config.workspace}/search/{name_of_search(config, manifest)}")

    @property
    def url(self) -> str:
        """Folder of the documents."""
        return self._store.url

    @contextmanager
    def locked(self, *, lost: Callable[[], None]) -> Iterator[None]:
        """Keep other calls of this search out of the block; ``lost`` is called, from a thread, if one takes the search over.

        Raises:
            CommitConflict: another call is at it.
            StorageError: the folder cannot be written.
        """
        busy = f"another process is at the search {self.url}; wait for it: the same command then continues the search."
        with ExitStack() as held:
            with write_errors_explained(self._store, what="folder of the search"):
                held.enter_context(self._store.lock(LOCK, busy=busy, lost=lost))
            yield

    def read(self) -> list[Trial]:
        """All trials that were begun, by number.

        Raises:
            DocumentDamaged: a document cannot be read.
        """
        return [read_model(self._store, f"{number}.json", Trial, expected="a trial of a search",
                           remedy="delete it: another trial then takes its place") for number in sorted(numbered(self._store, ""))]

    def write(self, trial: Trial) -> None:
        """Write a trial, in place of what was known of it."""
        self._store.put(f"{trial.number}.json", trial.model_dump_json(indent=1).encode())
