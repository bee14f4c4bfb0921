"""Check of the storage: whether a second writer is refused where datasets and runs are committed."""

from __future__ import annotations

from sparkring.conf.schema import Config
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.diagnosis.check import Check


def check_storage(config: Config | None) -> Check:
    """Ask the stores of the dataset and the workspace; where only a trial shows it, they write a document of no meaning and delete it."""
    if config is None:
        return Check("storage", "ok", "not looked at: that takes a config, which names the workspace")
    places = {config.dataset: config.dataset_one_writer, config.workspace: False}
    for url, one_writer in places.items():
        open_store(url, one_writer=one_writer).check_commits()
    return Check("storage", "ok", f"a second writer is refused at {' and '.join(places)}")
