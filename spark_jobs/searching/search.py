"""``sparkring search``: train with several values of config keys, several rings at once, and name the best run.

Each trial is a ring of its own in the same Spark application, and a run like any other in the workspace. A failed trial is a failed trial;
a fault of the cluster ends the search. The same call resumes a search that was cut off: trials that ended count, those under way go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import Config, HeldOutMetric
from sparkring.errors import ConfigError, SparkringError, Stopped
from sparkring.extras import extras_named
from sparkring.pipelines.data.dataset.folds import require_a_fold
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.evaluation.score import METRICS
from sparkring.spark_jobs.launch.gpus.source import gpus_to_deal, rank_resources
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.searching.page import write_search
from sparkring.spark_jobs.searching.space import require_searchable
from sparkring.spark_jobs.searching.study import Study
from sparkring.spark_jobs.searching.trial_run import TrialRun
from sparkring.spark_jobs.searching.trials import Trial, Trials, ranked
from sparkring.spark_jobs.spark.progress import SILENT, Bar, Progress
from sparkring.spark_jobs.spark.rings_at_once import rings_at_once
from sparkring.spark_jobs.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S = 0.5


@dataclass(frozen=True)
class SearchResult:
    """The trials, by number, and the best of them."""

    trials: tuple[Trial, ...]
    best: Trial | None
    """None if none was trained to its end."""
    metric: HeldOutMetric
    at_once: int
    seconds: float
    url: str
    """Folder of the trials' documents."""
    page: str
    """Address of the HTML file about them."""

    @property
    def pruned_share(self) -> float:
        """Share of the trials that ended early."""
        return sum(trial.state == "pruned" for trial in self.trials) / max(1, len(self.trials))


def search(config: ConfigLike, *, spark: SparkSession | None = None, progress: Progress = SILENT, stop: StopRequest | None = None,
           **keys: Any) -> SearchResult:
    """Search the values of ``search.space``.

    Args:
        config: What ``load_config`` takes; names the dataset version, the model, the training and what is searched.
        spark: The session to start rings in; default the active one, or one made from ``config.spark``.
        progress: Shows the trials done, and the best so far.
        stop: Lets another thread, or a signal's handler, ask all trials to save and end.
        keys: Keys of ``search`` or of the whole config that replace those of ``config``.
    Raises:
        ConfigError: the space holds no values, or some that the config does not take; nothing was started.
        CommitConflict: another process is at this search.
        NotEnoughSlots: Spark has too few slots for so many trials at once, or for one.
        EnvironmentProblem: Optuna is missing, or Spark has ended; the same call resumes, as after all other faults of the cluster.
        Stopped: ``stop`` asked for it; the same call resumes.
        SparkringError: all trials failed.
    """
    began = time.perf_counter()
    config = config_of_job(search, config, keys, section="search")
    require_searchable(config)
    with extras_named():
        import_module("optuna")
    dataset = Dataset(config.dataset)
    manifest = dataset.manifest(config.dataset_version, fold=config.fold)
    require_a_fold(manifest, dataset.url)
    if config.search.metric not in METRICS[manifest.task]:
        raise ConfigError(f"search.metric={config.search.metric} is not measured for the task {manifest.task}; set it to one of "
                          f"{', '.join(METRICS[manifest.task])}.")
    config = config.changed(dataset_version=manifest.version)
    trials, stop = Trials(config, manifest), stop or StopRequest()
    with trials.locked(lost=partial(stop.ask, "another process has taken over the search")):
        session = spark_session(config.spark, app_name=f"sparkring {config.name}", given=spark)
        ring, num_ranks = config.train.ring, config.train.num_ranks
        at_once = rings_at_once(session, num_ranks=num_ranks, asked=config.search.at_once, key="search.at_once", what="trials",
                                launcher=ring.launcher, resources=rank_resources(session, ring),
                                gpus=gpus_to_deal(session, ring, num_ranks=num_ranks))
        with progress.stage("search", total=config.search.trials) as bar:
            searching = _Searching(config, trials, bar)
            searching.run(TrialRun(config, manifest, session, searching.prunes, stop), at_once=at_once)
        found = tuple(trials.read())
        require_some_done(found, trials.url)
        best = best_of(found, config)
        page = write_search(found, best, config=config, url=trials.url)
    return SearchResult(found, best, config.search.metric, at_once, time.perf_counter() - began, trials.url, page)


def require_some_done(trials: Sequence[Trial], url: str) -> None:
    """Check that not every trial failed.

    Raises:
        SparkringError: all did.
    """
    if trials and all(trial.state == "failed" for trial in trials):
        raise SparkringError(f"all {len(trials)} trials failed, the first one by: {trials[0].error.rstrip('.')}; correct that, and delete "
                             f"{url} to begin the search again.")


def best_of(trials: tuple[Trial, ...] | list[Trial], config: Config) -> Trial | None:
    """The trial with the best value."""
    done = ranked((trial for trial in trials if trial.value is not None), config.search.metric)
    return done[0] if done else None


class _Searching:
    """The trials under way, and those that are still to come."""

    def __init__(self, config: Config, trials: Trials, bar: Bar) -> None:
        self._config, self._trials, self._bar = config, trials, bar
        self._known = {trial.number: trial for trial in trials.read()}
        self._study = Study(config.search, self._known.values(), epochs=config.train.epochs)
        self._lock = threading.Lock()
        """Optuna's study is used by the trials' watchers, too."""
        self._waiting = [trial for trial in self._known.values() if trial.state == "begun"]

    def prunes(self, number: int, epochs: Sequence[float]) -> bool:
        """Whether to end a trial early."""
        with self._lock:
            return self._study.prunes(number, epochs)

    def run(self, trial_run: TrialRun, *, at_once: int) -> None:
        """Do trials until there are as many as asked for.

        Raises:
            Stopped: the search was asked to stop.
            SparkringError: a fault of the cluster, which is no trial's.
        """
        with ThreadPoolExecutor(at_once, thread_name_prefix="sparkring-search") as pool:
            try:
                self._run_in(pool, trial_run, at_once=at_once)
            except BaseException:  # the pool waits for the trials under way, which need not train to their ends
                trial_run.stop.ask("an error ended the search")
                raise
        if trial_run.stop.asked:
            raise Stopped(f"stopped as asked ({trial_run.stop.reason}); the same command resumes the search.",
                          signal_number=trial_run.stop.signal_number)

    def _run_in(self, pool: ThreadPoolExecutor, trial_run: TrialRun, *, at_once: int) -> None:
        under_way = set[Future[Trial]]()
        while True:
            while len(under_way) < at_once and not trial_run.stop.asked and (trial := self._next()) is not None:
                under_way.add(pool.submit(trial_run.run, trial))
            self._show(len(under_way))
            if not under_way:
                return
            done, under_way = wait(under_way, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            for future in done:
                self._end(future)

    def _next(self) -> Trial | None:
        with self._lock:
            if self._waiting:
                begun = self._waiting.pop(0)
                self._study.resume(begun)
                return begun
            number = next(number for number in count() if number not in self._known)  # a document may have been deleted
            if number >= self._config.search.trials:
                return None
            trial = self._study.ask(number)
            if trial is None:
                return None
            self._known[number] = trial
        self._trials.write(trial)
        return trial

    def _end(self, future: Future[Trial]) -> None:
        try:
            trial = future.result()
        except Stopped:
            return  # it stays begun
        self._trials.write(trial)
        with self._lock:
            self._known[trial.number] = trial
            self._study.tell(trial)

    def _show(self, under_way: int) -> None:
        ended = [trial for trial in self._known.values() if trial.state != "begun"]
        best = best_of(ended, self._config)
        words = f"; best {self._config.search.metric} {best.value:.4f} in trial {best.number}" if best and best.value is not None else ""
        self._bar.update(len(ended), text=f"{under_way} running{words}")
