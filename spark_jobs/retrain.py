"""Retrain: take what is new, train a candidate, compare it with the champion on the same rows, and promote the better one.

    sparkring retrain my.yaml          one command for cron, Airflow or a Databricks job; see docs/how-to/retraining.md

    prepare     new rows become a dataset version (an append; a split by ages rolls)
    due?        retrain.trigger; nothing is trained on a night without news, and Spark is not even started if no source has changed
    train       the candidate, from the champion's weights or afresh
    evaluate    the candidate on the test rows of the new version, and the champion on the same, row by row; beside a fitted baseline
                only while there is no champion
    decide      retrain.promote; either way the reason is kept
    report      <workspace>/retrain/report.html: all retrainings so far

A call that finds another one at work yields. The next call resumes one that was killed: each step finds what is done, and
does it once. One that cannot end, since its champion cannot be compared any more or its test rows are of one label, is given up.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import Config
from sparkring.errors import (
    CommitConflict,
    ConfigError,
    DatasetError,
    DatasetVersionNotFound,
    ModelVersionNotFound,
    RegistryChanged,
)
from sparkring.extras import extras_named
from sparkring.pipelines.data.dataset.folds import require_a_fold
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.evaluation.totals import Metrics
from sparkring.pipelines.training.job.model_files import load_card
from sparkring.spark_jobs.evaluate import SPLIT, evaluate, measure, require_both_labels
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.registry.documents import ModelVersion
from sparkring.spark_jobs.registry.register import register_run
from sparkring.spark_jobs.registry.registry import Registry
from sparkring.spark_jobs.retraining.compare import compare
from sparkring.spark_jobs.retraining.drift import largest, stability_indices
from sparkring.spark_jobs.retraining.history import Begun, Ended, History, now
from sparkring.spark_jobs.retraining.paired import Paired, judge
from sparkring.spark_jobs.retraining.triggers import Situation, why_due
from sparkring.spark_jobs.scoring.split_rows import version_for
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.spark.session import result_settings, spark_session
from sparkring.spark_jobs.tracking.mirror import mirror
from sparkring.spark_jobs.train import train

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RetrainResult:
    """The outcome of one call."""

    outcome: Literal["promoted", "kept", "nothing new", "busy"]
    """The candidate became the champion; the champion stays; no trigger held; another process is at it."""
    reason: str
    dataset_version: int | None = None
    number: int | None = None
    """The number of the retraining; None if there was none."""
    candidate: int | None = None
    """The candidate's number in the registry."""
    champion: int | None = None
    """The champion's number now."""
    run: str | None = None
    """The candidate's run."""
    seconds: float = 0.0
    train_seconds: float = 0.0
    """Those of them in which the candidate was trained."""


def retrain(config: ConfigLike, *, spark: SparkSession | None = None, progress: Progress = SILENT, stop: StopRequest | None = None,
            **keys: Any) -> RetrainResult:
    """Retrain, if something is new.

    Args:
        config: What ``load_config`` takes. Its sources may hold all rows or only new ones; known rows are told by their ids.
        spark: The session to use; default the active one, or one made from ``config.spark`` when it is needed.
        progress: Where to report.
        stop: Lets another thread, or a signal's handler, ask the training to save and end; the next call goes on.
        keys: Keys of ``retrain`` or of the whole config that replace those of ``config``.
    Raises:
        ConfigError: the config names a run or a dataset version, which every retraining chooses itself.
        ExpectationsNotMet: the new rows break ``prepare.expectations``; nothing was committed.
        SourceError, DatasetError, RankFailed, Stopped and others: as ``prepare``, ``train`` and ``evaluate`` raise them; the next call
            goes on where this one ended.
        CommitConflict: someone else changed the dataset or the aliases meanwhile.
    """
    began = time.perf_counter()
    config = config_of_job(retrain, config, keys, section="retrain")
    for key in ("run", "dataset_version"):
        if getattr(config, key) is not None:
            raise ConfigError(f"the config sets {key}, and each retraining has one of its own; leave {key} out.")
    if config.fold is not None:
        raise ConfigError(f"the config sets fold={config.fold}, and a retraining trains on all train rows; leave fold out.")
    history = History(config.workspace)
    with ExitStack() as held:
        try:
            held.enter_context(history.locked())
        except CommitConflict as error:
            return RetrainResult("busy", str(error), seconds=time.perf_counter() - began)
        night = _Night(config, history, spark, progress, stop or StopRequest(), began)
        begun = history.unfinished()
        if begun is not None:
            progress.note(f"retrain: going on with retraining {begun.number} on dataset version {begun.dataset_version}, begun {begun.at}")
            return night.resume(begun)
        return night.look()


class _Night:
    """One call, alone in its workspace."""

    def __init__(self, config: Config, history: History, spark: SparkSession | None, progress: Progress, stop: StopRequest,
                 began: float) -> None:
        self._config, self._history, self._spark, self._progress, self._stop = config, history, spark, progress, stop
        self._began = began
        self._registry = Registry(config.workspace)
        self._dataset = Dataset(config.dataset)
        self._drifted: dict[str, float] | None = None

    def look(self) -> RetrainResult:
        """Take what is new, and retrain if that is due."""
        if self._config.retrain.prepare:
            prepare(self._config, append=bool(self._dataset.versions()), spark=self._spark, progress=self._progress)
        manifest, champion = self._dataset.manifest(), self._model(self._registry.aliases().champion)
        require_a_fold(manifest, self._dataset.url)
        ended = self._history.ended()
        last = ended[-1] if ended else None
        found = Situation(
            dataset_version=manifest.version, rows=_rows(manifest), trained_version=last.dataset_version if last else None,
            trained_rows=last.rows if last else 0,
            champion_since=datetime.fromisoformat(champion.created_at) if champion else None)

        def drift() -> dict[str, float]:
            self._require_comparable(champion, manifest)  # else the new files may lack the champion's columns
            return self._drift(champion, manifest)

        reasons = why_due(self._config.retrain.trigger, found, now=datetime.now(UTC), drift=drift)
        if not reasons:
            reason = f"dataset version {manifest.version} holds {found.rows - found.trained_rows:,} rows more than the last retraining had"
            return RetrainResult("nothing new", reason, dataset_version=manifest.version, champion=champion.version if champion else None,
                                 seconds=self._seconds())
        self._require_evaluable(manifest)
        self._require_comparable(champion, manifest)
        self._stop.require_none()
        return self.run(self._history.begin(dataset_version=manifest.version, rows=found.rows, reasons=reasons,
                                            champion=champion.version if champion else None))

    def resume(self, begun: Begun) -> RetrainResult:
        """Go on with one that was begun; give it up if it cannot end, since every later call would take it up again."""
        try:
            manifest = self._dataset.manifest(begun.dataset_version)
            self._require_evaluable(manifest)
            self._require_comparable(self._model(begun.champion), manifest)
        except (DatasetError, DatasetVersionNotFound, ModelVersionNotFound, RegistryChanged) as error:
            self._history.give_up(begun, reason=str(error))
            self._progress.note(f"retrain: retraining {begun.number} is given up: {error.found}")
            return self.look()
        return self.run(begun)

    def run(self, begun: Begun) -> RetrainResult:
        """Train, evaluate, decide, and record it; whatever an earlier call has done of it is found done."""
        self._progress.note(f"retrain: {', '.join(begun.reasons)}")
        manifest = self._dataset.manifest(begun.dataset_version)
        champion = self._model(begun.champion)
        trained = train(self._candidate_config(manifest, champion), spark=self._spark, progress=self._progress, stop=self._stop)
        evaluated = evaluate(self._config, run=trained.run, dataset_version=manifest.version, fitted_baselines=champion is None,
                             spark=self._spark, progress=self._progress)
        candidate = register_run(self._registry, trained.run)
        if self._registry.aliases().champion != candidate.version:  # it is if an earlier call was killed right after the promotion
            self._registry.propose(candidate.version, reason=f"trained on dataset version {manifest.version}: {', '.join(begun.reasons)}")
        if champion is None:
            paired, before = None, dict[str, float]()
        else:
            before = _figures(measure(self._config, run=champion.run, dataset_version=manifest.version, spark=self._spark,
                                      progress=self._progress))
            paired = self._compared(manifest, champion, candidate)
        ended = self._decide(begun, candidate, paired, champion_metrics=before, candidate_metrics=_figures(evaluated["network"]),
                             drift=largest(self._drift(champion, manifest)))
        return RetrainResult(ended.outcome, ended.reason, dataset_version=manifest.version, number=ended.number,
                             candidate=candidate.version, champion=self._registry.aliases().champion, run=trained.run,
                             seconds=self._seconds(), train_seconds=trained.seconds)

    def _decide(self, begun: Begun, candidate: ModelVersion, paired: Paired | None, *, champion_metrics: dict[str, float],
                candidate_metrics: dict[str, float], drift: dict[str, float]) -> Ended:
        policy = self._config.retrain.promote
        verdict = judge(paired, policy)
        if verdict.promote:
            self._registry.promote(candidate.version, reason=verdict.reason)
        elif policy.when != "never":
            self._registry.keep(reason=verdict.reason)
        mirror(self._registry, self._config, self._progress)
        low, high = paired.interval(policy.confidence) if paired else (None, None)
        ended = Ended(
            number=begun.number, outcome="promoted" if verdict.promote else "kept", reason=verdict.reason,
            dataset_version=begun.dataset_version, rows=begun.rows, champion=begun.champion, candidate=candidate.version,
            run=candidate.run, held_out_rows=candidate.rows, champion_metrics=champion_metrics, candidate_metrics=candidate_metrics,
            gain=paired.gain if paired else None, gain_low=low, gain_high=high, p_value=paired.p_value if paired else None,
            drift=drift, began_at=begun.at, at=now())
        self._history.end(ended)
        self._report()
        return ended

    def _report(self) -> None:
        """Write the page of all retrainings; what keeps it from being written is a note, for the decision stands."""
        try:
            with extras_named():
                from sparkring.spark_jobs.reporting.retraining.page import write_retrainings  # imports matplotlib, which a cluster may lack
            page = write_retrainings(self._config)
        except Exception as error:  # noqa: BLE001 - a retraining that has ended must not fail because of its page
            self._progress.note(f"retrain: the report was not written; `sparkring report --retraining` writes it. The reason: {error}")
        else:
            self._progress.note(f"retrain: report of all retrainings at {page.path}")

    def _candidate_config(self, manifest: Manifest, champion: ModelVersion | None) -> Config:
        changes: dict[str, Any] = {"dataset_version": manifest.version}
        if champion is not None and self._config.retrain.start == "champion":
            weights = self._registry.run_url(champion)
            changes["model"] = self._config.model.model_copy(update={"weights": weights, "weights_sha256": champion.weights_sha256})
        return self._config.changed(**changes)

    def _compared(self, manifest: Manifest, champion: ModelVersion, candidate: ModelVersion) -> Paired:
        session = spark_session(self._config.spark, app_name=f"sparkring {self._config.name}", given=self._spark)
        with self._progress.stage("compare", total=1) as bar, result_settings(session):
            bar.update(0, text=f"model versions {champion.version} and {candidate.version}")
            return compare(session, manifest, champion=self._registry.run_url(champion), candidate=self._registry.run_url(candidate),
                           batch_rows=self._config.score.batch_rows)

    def _model(self, number: int | None) -> ModelVersion | None:
        return None if number is None else self._registry.version(number)

    def _require_evaluable(self, manifest: Manifest) -> None:
        """Check that a candidate that is trained on a dataset version can be evaluated on it.

        Raises:
            DatasetError: it has no test split, or a split of one label only.
        """
        require_both_labels({"train": manifest, SPLIT: manifest}, self._dataset.url)

    def _require_comparable(self, champion: ModelVersion | None, manifest: Manifest) -> None:
        """Check that the champion can start a candidate and be compared with it on a dataset version.

        Raises:
            RegistryChanged: its files are not the registered ones.
            DatasetError: it does not read rows as that version encodes them.
        """
        if champion is None:
            return
        self._registry.verify(champion)
        try:
            version_for(load_card(self._registry.run_url(champion)), manifest.version)
        except DatasetError as error:
            raise DatasetError(f"the champion, model version {champion.version}, cannot be compared with a candidate: {error.found}; run "
                               "`sparkring train`, `sparkring evaluate` and `sparkring models promote` with this config, which make a "
                               f"champion on version {manifest.version}.") from None

    def _drift(self, champion: ModelVersion | None, manifest: Manifest) -> dict[str, float]:
        """How far each feature has drifted since the champion was trained; measured once in a call."""
        if champion is not None and self._drifted is None:
            self._drifted = stability_indices(self._dataset.store, self._dataset.manifest(champion.dataset_version), manifest)
        return self._drifted or {}

    def _seconds(self) -> float:
        return time.perf_counter() - self._began


def _rows(manifest: Manifest) -> int:
    return sum(split.rows for split in manifest.splits.values())


def _figures(metrics: Metrics) -> dict[str, float]:
    """Those that are defined."""
    return {name: value for name, value in metrics.items() if isinstance(value, float) and math.isfinite(value)}
