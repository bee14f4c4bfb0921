"""Runs that no ring has trained, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparkring.conf.schema import Config
from sparkring.spark_jobs.run.folder import RunFolder


def begin_run(config: Config, **identity: Any) -> None:
    """Begin the run that ``config`` names, as ``train`` does before its first rank; does nothing if it was begun."""
    made = {"dataset_version": 1, "content_id": "c1", "lanes": 24, "model": config.model.model_dump(mode="json"),
            "train": config.train.model_dump(mode="json", include={"epochs", "seed", "optimizer"}), **identity}
    RunFolder(config.run_url).claim(made, dataset_url=config.dataset, lanes_given=True)


def only_run(workspace: Path) -> Path:
    """The folder of the only run of a workspace."""
    (document,) = (workspace / "runs").glob("*.json")
    return document.with_suffix("")
