"""``sparkring compare``: train the same network on the same rows by several strategies, and lay their runs side by side.

Each strategy is a run of its own in the workspace, like any other; one that is done already is reused if its seconds and bytes are those
of the config (runs.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.events.writer import read_events
from sparkring.spark_jobs.comparing.runs import with_comparable_run
from sparkring.spark_jobs.comparing.strategies import sections_of
from sparkring.spark_jobs.reporting.comparison.facts import Compared, compared, verdict
from sparkring.spark_jobs.reporting.comparison.page import write_comparison
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.train import train

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkring.spark_jobs.recovery.stop import StopRequest


@dataclass(frozen=True)
class ComparisonResult:
    """The runs, and the page about them."""

    runs: tuple[Compared, ...]
    """In the order in which the strategies were named."""
    verdict: str
    page: str
    """Address of the HTML file."""


def compare(config: ConfigLike, *, strategies: str, spark: SparkSession | None = None, progress: Progress = SILENT,
            stop: StopRequest | None = None, **keys: Any) -> ComparisonResult:
    """Train by each strategy and compare.

    Args:
        config: What ``load_config`` takes; names the dataset version, the model and the training.
        strategies: Their names with commas between them, e.g. ``exact,local_sgd:8,stale_sync:4``; the number is
            ``every_steps`` or ``bound``.
        spark: The session to start rings in; default the active one, or one made from ``config.spark``.
        progress: Shows a bar for each training.
        stop: Lets another thread, or a signal's handler, ask the training to save and end.
        keys: Keys of ``train`` or of the whole config that replace those of ``config``.
    Raises:
        ConfigError: a strategy is none, or does not go together with the config.
        SparkringError: what ``train`` raises; the same call resumes.
    """
    sections = sections_of(strategies)
    base = config_of_job(compare, config, {**keys, "run": None, "strategy": "exact"}, section="train")
    trainings = {word: _with_strategy(base, section) for word, section in sections.items()}  # all first: a refusal costs no training
    manifest = Dataset(base.dataset).manifest(base.dataset_version, fold=base.fold)
    found = []
    for word, each in trainings.items():
        progress.note(f"compare: {word}")
        mine = with_comparable_run(each.changed(dataset_version=manifest.version), manifest, progress=progress)
        result = train(mine, spark=spark, progress=progress, stop=stop)
        note = "" if each.train.ring.allreduce == base.train.ring.allreduce else (
            f"{word} was trained without train.ring.allreduce={base.train.ring.allreduce}: it has no sums over all ranks.")
        found.append(compared(word, result.run, read_events(result.url), result.validation, note=note))
    page = write_comparison(found, name=base.name, workspace=base.workspace)
    return ComparisonResult(tuple(found), verdict(found), page)


def _with_strategy(base: Config, section: Mapping[str, Any]) -> Config:
    """The config with another strategy; without ``allreduce`` where that has no meaning, so that one config serves all strategies."""
    ring = base.train.ring
    without = {"ring": {"allreduce": "horovod"}} if section["kind"] == "stale_sync" and ring.wire == "exact" else {}
    return config_of_job(compare, base, {"strategy": section, **without}, section="train")
