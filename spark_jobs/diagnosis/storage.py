"""Check of the storage: whether a second writer is refused where datasets and runs are committed."""

from __future__ import annotations

from sparkring.conf.schema import Config
from sparkring.errors import SparkringError
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.diagnosis.check import Check


def check_storage(config: Config | None) -> Check:
    """Ask the stores of the dataset and the workspace; where only a trial shows it, they write a document of no meaning and delete it."""
    if config is None:
        return Check("storage", "ok", "not looked at: that takes a config, which names the workspace")
    open_store(config.workspace).check_commits()
    try:
        open_store(config.dataset, one_writer=config.dataset_one_writer).check_commits()
    except SparkringError as error:
        return Check("storage", "warn", f"train can use {config.workspace}, but prepare could not write {config.dataset}: {error}")
    return Check("storage", "ok", f"a second writer is refused at {' and '.join(dict.fromkeys((config.dataset, config.workspace)))}")
