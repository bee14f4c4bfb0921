"""``sparkring compare``: train the same network on the same rows by several strategies, and lay their runs side by side.

Each strategy is a run of its own in the workspace, like any other; one that is done already is reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.pipelines.training.events.writer import read_events
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
    trainings = {word: config_of_job(compare, config, {**keys, "run": None, "strategy": section}, section="train")
                 for word, section in sections_of(strategies).items()}  # all first: a strategy that is refused costs no training
    found = []
    for word, each in trainings.items():
        progress.note(f"compare: {word}")
        result = train(each, spark=spark, progress=progress, stop=stop)
        found.append(compared(word, result.run, read_events(result.url), result.validation))
    page = write_comparison(found, name=each.name, workspace=each.workspace)
    return ComparisonResult(tuple(found), verdict(found), page)
