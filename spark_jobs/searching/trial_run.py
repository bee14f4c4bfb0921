"""One trial: a run like any other, watched while it trains, and stopped after an epoch that tells that it leads nowhere."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, SparkringError, Stopped
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.training.events.writer import read_events
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.run.place import with_run
from sparkring.spark_jobs.searching.space import with_params
from sparkring.spark_jobs.searching.trials import Trial
from sparkring.spark_jobs.train import train

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRUNED = "its trial leads nowhere"
LOOK_S = 1.0
"""Seconds between two looks at a trial's epochs."""


@dataclass(frozen=True)
class TrialRun:
    """What all trials of a search have in common."""

    config: Config
    manifest: Manifest
    spark: SparkSession
    prunes: Callable[[int, Sequence[float]], bool]
    """(trial, metric after each epoch) -> whether to end it."""
    stop: StopRequest
    """Ends all trials; they resume with the next call."""

    def run(self, trial: Trial) -> Trial:
        """Train, and return the trial as it ended.

        Raises:
            Stopped: the search was asked to stop; the trial stays begun.
        """
        began = time.monotonic()
        try:
            config = with_run(with_params(self.config, trial.params).fitted_to(self.manifest.splits["train"].rows), self.manifest)
        except ConfigError as error:  # two values that the config does not take together
            return trial.model_copy(update={"state": "failed", "error": str(error)})
        ended = self._trained(trial, config)
        return trial.model_copy(update={**ended, "run": config.run, "epochs": self._epochs(config.run_url),
                                        "seconds": round(time.monotonic() - began, 3)})

    def _trained(self, trial: Trial, config: Config) -> dict[str, Any]:
        """Train; returns how the trial ended."""
        stop, done = StopRequest(), threading.Event()
        watch = threading.Thread(target=self._watch, args=(trial, config, stop, done), name="sparkring-trial", daemon=True)
        watch.start()
        try:
            result = train(config, spark=self.spark, stop=stop)
        except Stopped:
            if stop.reason == PRUNED:
                return {"state": "pruned"}
            if self.stop.asked:
                raise
            return {"state": "failed", "error": f"it was stopped: {stop.reason or 'another process trains its run'}"}
        except SparkringError as error:
            return {"state": "failed", "error": f"{type(error).__name__}: {error}"}
        finally:
            done.set()
            watch.join()
        value, metric = result.validation[self.config.search.metric], self.config.search.metric
        if not math.isfinite(value):
            return {"state": "failed", "error": f"its held-out {metric} is {value}"}
        return {"state": "done", "value": value}

    def _watch(self, trial: Trial, config: Config, stop: StopRequest, done: threading.Event) -> None:
        seen = 0
        while not done.wait(LOOK_S):
            if self.stop.asked:
                stop.ask(self.stop.reason, signal_number=self.stop.signal_number)
                return
            epochs = self._epochs(config.run_url)
            if len(epochs) > seen and len(epochs) < config.train.epochs and self.prunes(trial.number, epochs):
                stop.ask(PRUNED)
                return
            seen = len(epochs)

    def _epochs(self, run_url: str) -> tuple[float, ...]:
        """The metric after each epoch so far; none while the run has no events, or its storage is away."""
        try:
            found = {record["epoch"]: record["validation"][self.config.search.metric] for record in read_events(run_url)
                     if record["event"] == "epoch" and record["validation"]}
        except (OSError, SparkringError, KeyError):
            return ()
        return tuple(found[epoch] for epoch in sorted(found))
