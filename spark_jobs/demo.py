"""The main job in one Spark session: prepare, train, evaluate, score, report. What exists already is reused.

    sparkring demo local/flights

Each step is the public function of its own module; this one runs them in order and times them. The first step that needs Spark starts
the session, and later steps find it active; if nothing is left to do, no session is started.
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
    """The results of all steps."""

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
        config: Names the workspace, the source and the network.
        spark: The session to use; default the active one, or one made from ``config.spark`` when it is needed.
        progress: Shows a bar for each step.
        stopping: Entered during training; yields the request by which training may be asked to save and end.
    Returns:
        The results of all steps, and how long each took.
    Raises:
        Stopped: training was asked to stop; the same call resumes.
        SparkringError: a step failed; the results of the steps before it stay.
    """
    seconds: dict[str, float] = {}
    with _timed("prepare", seconds):
        dataset = prepare(config, spark=spark, progress=progress)
    with _timed("train", seconds), stopping() as stop:
        training = train(config, spark=spark, progress=progress, stop=stop)
    config = config.changed(run=training.run)
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
