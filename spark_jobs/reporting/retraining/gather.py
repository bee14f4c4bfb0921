"""Read what a workspace holds about its retrainings. A document that cannot be read leaves a gap that the page names."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from sparkring.conf.schema import Config
from sparkring.errors import SparkringError
from sparkring.pipelines.data.dataset.manifest import RollingSplit
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.registry.documents import AliasChange, ModelVersion
from sparkring.spark_jobs.registry.registry import Registry
from sparkring.spark_jobs.reporting.retraining.facts import Retrainings, retrainings
from sparkring.spark_jobs.retraining.history import Begun, Ended, History

Found = TypeVar("Found")


def gather(config: Config) -> Retrainings:
    """Read the documents of the config's workspace."""
    history, registry, gaps = History(config.workspace), Registry(config.workspace), list[str]()
    ended = _read(history.ended, list[Ended](), gaps)
    changes = _read(registry.history, list[AliasChange](), gaps)
    begun = _read(history.begun, list[Begun](), gaps)
    rolling = _rolling(Dataset(config.dataset), {each.dataset_version for each in ended}, gaps)
    return retrainings(ended, begun, rolling=rolling, champion=_champion(registry, changes, gaps), changes=changes, gaps=gaps)


def _champion(registry: Registry, changes: list[AliasChange], gaps: list[str]) -> ModelVersion | None:
    number = changes[-1].champion if changes else None
    return None if number is None else _read(lambda: registry.version(number), None, gaps)


def _rolling(dataset: Dataset, wanted: Collection[int], gaps: list[str]) -> dict[int, RollingSplit]:
    """The borders of those versions that are there and roll."""
    found = {version: _read(partial(_borders, dataset, version), None, gaps) for version in dataset.versions() if version in wanted}
    return {version: rolling for version, rolling in found.items() if rolling}


def _borders(dataset: Dataset, version: int) -> RollingSplit | None:
    return dataset.manifest(version).rolling


def _read(read: Callable[[], Found], instead: Found, gaps: list[str]) -> Found:
    try:
        return read()
    except SparkringError as error:
        gaps.append(str(error))
        return instead
