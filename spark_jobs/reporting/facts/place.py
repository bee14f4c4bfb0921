"""Where a report's parts lie: what the report needs of a config, and the same of a run whose folder alone is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from sparkring.conf.schema import TrainConfig
from sparkring.errors import ConfigError
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.run.listing import read_document_of


class Place(Protocol):
    """A workspace and perhaps a run in it; a ``Config`` is one."""

    @property
    def name(self) -> str:
        """The title of the page."""
        ...

    @property
    def run(self) -> str | None:
        """The run's name; None: there is none, and the page is about the dataset."""
        ...

    @property
    def runs(self) -> str:
        """Folder of the runs."""
        ...

    @property
    def run_url(self) -> str:
        """Folder of the run."""
        ...

    @property
    def dataset(self) -> str:
        """The dataset."""
        ...

    @property
    def dataset_version(self) -> int | None:
        """The version to describe if the run does not say which it was trained on; None: the latest."""
        ...

    @property
    def scores(self) -> str:
        """Folder of what the run's model scored."""
        ...

    @property
    def train(self) -> TrainConfig:
        """Settings of training, under those that the run was begun with."""
        ...


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run, found by its folder."""

    runs: str
    run: str
    dataset: str
    dataset_version: int | None = None
    train: TrainConfig = field(default_factory=TrainConfig)

    @classmethod
    def at(cls, url: str) -> StoredRun:
        """The run in the folder ``<workspace>/runs/<name>``.

        Raises:
            ConfigError: no run was begun there.
            DocumentDamaged: its document cannot be read.
        """
        runs, _, name = url.rstrip("/").rpartition("/")
        try:
            return cls(runs=runs, run=name, dataset=read_document_of(open_store(runs), name).dataset_url)
        except FileNotFoundError:
            raise ConfigError(f"{url} is no run's folder, since there is no {name}.json beside it; give <workspace>/runs/<name>, as "
                              "`sparkring runs list` shows it, or a config.") from None

    @property
    def name(self) -> str:
        """See Place."""
        return self.run

    @property
    def run_url(self) -> str:
        """See Place."""
        return f"{self.runs}/{self.run}"

    @property
    def scores(self) -> str:
        """See Place."""
        return f"{self.run_url}/scores"
