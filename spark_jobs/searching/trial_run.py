"""One trial: a run like any other, watched while it trains, and stopped after an epoch that tells that it leads nowhere."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkring.conf.schema import Config
from sparkring.errors import (
    CommitConflict,
    ConfigError,
    DatasetError,
    DeadlinePassed,
    EnvironmentProblem,
    ExecutorLost,
    HostsLeftOut,
    NotEnoughSlots,
    PeerSilent,
    RankFailed,
    RingEnded,
    RingError,
    SparkringError,
    Stopped,
    StorageError,
    class_names,
)
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.run.given import with_given_weights
from sparkring.spark_jobs.run.place import with_run
from sparkring.spark_jobs.searching.epochs import Epochs
from sparkring.spark_jobs.searching.space import with_params
from sparkring.spark_jobs.searching.trials import Trial
from sparkring.spark_jobs.train import train

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRUNED = "its trial leads nowhere"
LOOK_S = 1.0
"""Seconds between two looks at a trial's epochs."""
NO_TRIAL_S = (EnvironmentProblem, NotEnoughSlots, HostsLeftOut, ExecutorLost, DeadlinePassed, PeerSilent, RingEnded, StorageError,
              CommitConflict, DatasetError)
"""Faults of the cluster, the storage or the data, on the driver or on a rank: once they are mended, the same values may train."""


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
            SparkringError: a fault that is not the trial's; it stays begun, too.
        """
        began = time.monotonic()
        try:
            config = with_given_weights(with_params(self.config, trial.params)).fitted_to(self.manifest.splits["train"].rows)
            config = with_run(config, self.manifest)
        except ConfigError as error:  # two values that the config does not take together
            return trial.model_copy(update={"state": "failed", "error": str(error)})
        epochs = Epochs(config.run_url, config.search.metric)
        ended = self._trained(trial, config, epochs)
        return trial.model_copy(update={**ended, "run": config.run, "epochs": epochs.so_far(),
                                        "seconds": round(time.monotonic() - began, 3)})

    def _trained(self, trial: Trial, config: Config, epochs: Epochs) -> dict[str, Any]:
        """Train; returns how the trial ended."""
        stop, done = StopRequest(), threading.Event()
        with ThreadPoolExecutor(1, thread_name_prefix="sparkring-trial") as pool:
            watch = pool.submit(self._watch, trial, config, epochs, stop, done)
            try:
                result = train(config, spark=self.spark, stop=stop)
            except Stopped:
                if stop.reason == PRUNED:
                    return {"state": "pruned"}
                if self.stop.asked:
                    raise
                raise CommitConflict(f"trial {trial.number} was stopped, since {stop.reason or 'another process trains its run'}; wait "
                                     f"for run {config.run}, then resume the search by the same command.") from None
            except SparkringError as error:
                if is_no_trial_s(error):
                    raise
                return {"state": "failed", "error": f"{type(error).__name__}: {error}"}
            finally:
                done.set()
                watch.result()  # raises what ended the watch
        metric = self.config.search.metric
        if metric not in result.validation:
            return {"state": "failed", "error": f"the validation split has no {metric}: all its labels are alike; search by loss, or hold "
                                                "out other rows"}
        value = result.validation[metric]
        if not math.isfinite(value):
            return {"state": "failed", "error": f"its held-out {metric} is {value}"}
        return {"state": "done", "value": value}

    def _watch(self, trial: Trial, config: Config, epochs: Epochs, stop: StopRequest, done: threading.Event) -> None:
        seen = 0
        while not done.wait(LOOK_S):
            if self.stop.asked:
                stop.ask(self.stop.reason, signal_number=self.stop.signal_number)
                return
            found = epochs.so_far()
            try:
                leads_nowhere = seen < len(found) < config.train.epochs and self.prunes(trial.number, found)
            except BaseException:  # nobody would stop the trial any more
                stop.ask("the search cannot judge it")
                raise
            if leads_nowhere:
                stop.ask(PRUNED)
                return
            seen = len(found)


def is_no_trial_s(error: SparkringError) -> bool:
    """Whether an error of ``train`` says nothing about the values of a trial."""
    if isinstance(error, RankFailed):
        return error.summary.partition(":")[0] in class_names(*NO_TRIAL_S)
    return isinstance(error, NO_TRIAL_S) or type(error) is RingError  # the base class itself: contact was lost
