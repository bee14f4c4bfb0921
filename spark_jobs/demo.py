"""The main job in one Spark session: prepare, train, evaluate, score, report. What is there already is reused.

    sparkring demo local/flights

Each step is the public function of its own module; this one only puts them in order and takes the time. The first step
that needs Spark starts the session, and those after it find it active; where all is there already, none is started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkring.conf.schema import Config
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.prepare import PrepareResult, prepare
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.report import ReportResult, report
from sparkring.spark_jobs.score import ScoreResult, score
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.train import TrainResult, train

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What each step left."""

    dataset: PrepareResult
    training: TrainResult
    evaluation: dict[str, Any]
    """The network and two baselines on the held-out rows, as in ``evaluation.json``."""
    scores: ScoreResult
    report: ReportResult
    seconds: dict[str, float]
    """Wall-clock seconds of ``prepare``, ``train``, ``evaluate``, ``score`` and ``report``; the first one starts Spark."""


def demo(config: Config, *, spark: SparkSession | None = None, progress: Progress = SILENT,
         stopping: Callable[[], AbstractContextManager[StopRequest | None]] = nullcontext) -> DemoResult:
    """Run the whole main job.

    Args:
        config: Names the workspace that everything goes to, the source and the network.
        spark: The session to use; default the active one, or one made from ``config.spark`` when it is needed.
        progress: Where to show a bar for each step.
        stopping: Entered for the length of the training: gives that by which it may be asked to save and end.
    Returns:
        What each step left, and how long it took.
    Raises:
        Stopped: the training was asked to; the same call again goes on.
        SparkringError: what the step at fault raises; the steps before it keep what they made.
    """
    seconds: dict[str, float] = {}
    with _timed("prepare", seconds):
        dataset = prepare(config, spark=spark, progress=progress)
    with _timed("train", seconds), stopping() as stop:
        training = train(config, spark=spark, progress=progress, stop=stop)
    with _timed("evaluate", seconds):
        evaluation = evaluate(config, spark=spark, progress=progress)
    with _timed("score", seconds):
        scores = score(config, spark=spark, progress=progress)
    with _timed("report", seconds):
        page = report(config, progress=progress)
    return DemoResult(dataset=dataset, training=training, evaluation=evaluation, scores=scores, report=page, seconds=seconds)


@contextmanager
def _timed(step: str, seconds: dict[str, float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - began
