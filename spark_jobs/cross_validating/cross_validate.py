"""``sparkring cross-validate``: train once for each fold of a dataset version, several rings at once, and say how the folds differ.

    sparkring cross-validate my.yaml          prepare.split={by: fold, column: KEY, folds: 5} has made the folds

Each fold is a ring of its own in the same Spark application, and a run like any other, which trains on all other folds and validates on
this one. So each row outside the test split is validated exactly once. The same call resumes: folds that are done are not trained again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import Config
from sparkring.conf.schema.data.splits import fold_name
from sparkring.errors import DatasetError, SparkringError, Stopped
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.launch.gpus.source import gpus_to_deal, rank_resources
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.reporting.folds.facts import FoldResult, Spread, spreads
from sparkring.spark_jobs.reporting.folds.page import write_folds
from sparkring.spark_jobs.spark.progress import SILENT, Bar, Progress
from sparkring.spark_jobs.spark.rings_at_once import rings_at_once
from sparkring.spark_jobs.spark.session import spark_session
from sparkring.spark_jobs.train import TrainResult, train

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENT = "cross-validation.json"


@dataclass(frozen=True)
class CrossValidation:
    """The runs of all folds, and each metric over them."""

    dataset_version: int
    content_id: str
    folds: tuple[FoldResult, ...]
    """By their numbers."""
    metrics: Mapping[str, Spread]
    """Of the held-out metrics."""
    at_once: int
    seconds: float
    document: str
    """Address of the JSON file with all this."""
    page: str
    """Address of the HTML file."""


def cross_validate(config: ConfigLike, *, spark: SparkSession | None = None, progress: Progress = SILENT, stop: StopRequest | None = None,
                   **keys: Any) -> CrossValidation:
    """Train and validate each fold.

    Args:
        config: What ``load_config`` takes; names the dataset version, which must be in folds, the model and the training. Its ``run``, if
            it has one, is the beginning of the runs' names.
        spark: The session to start rings in; default the active one, or one made from ``config.spark``.
        progress: Shows the folds done.
        stop: Lets another thread, or a signal's handler, ask all folds to save and end.
        keys: Keys of ``cross_validate`` or of the whole config that replace those of ``config``.
    Raises:
        DatasetError: the version is not in folds; nothing was started.
        NotEnoughSlots, EnvironmentProblem: Spark has too few slots or GPUs, or does not say how many slots.
        Stopped: ``stop`` asked for it; the same call resumes.
        SparkringError: what ``train`` raised for a fold; the others were trained to their ends, and the same call trains what is left.
    """
    began = time.perf_counter()
    config = config_of_job(cross_validate, config, keys, section="cross_validate")
    manifest = Dataset(config.dataset).manifest(config.dataset_version)
    trainings = _trainings(config, manifest)
    session = spark_session(config.spark, app_name=f"sparkring {config.name}", given=spark)
    ring, num_ranks = config.train.ring, config.train.num_ranks
    at_once = rings_at_once(session, num_ranks=num_ranks, asked=config.cross_validate.at_once, key="cross_validate.at_once", what="folds",
                            launcher=ring.launcher, resources=rank_resources(session, ring),
                            gpus=gpus_to_deal(session, ring, num_ranks=num_ranks))
    at_once = min(len(trainings), at_once)
    with progress.stage("cross-validate", total=len(trainings)) as bar:
        trained = _train_all(trainings, session, stop or StopRequest(), at_once=at_once, bar=bar, progress=progress)
    folds = tuple(FoldResult(fold=fold, run=result.run, rows=manifest.splits[fold_name(fold)].rows, epochs=result.epochs,
                             steps=result.steps, metrics=_finite(result.validation)) for fold, result in sorted(trained.items()))
    store = open_store(config.workspace)
    found = CrossValidation(
        dataset_version=manifest.version, content_id=manifest.content_id, folds=folds, metrics=spreads(folds), at_once=at_once,
        seconds=time.perf_counter() - began, document=store.path(DOCUMENT), page=write_folds(folds, name=config.name, store=store))
    store.put(DOCUMENT, json.dumps(asdict(found), indent=1).encode())
    return found


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _trainings(config: Config, manifest: Manifest) -> dict[int, Config]:
    """The config of each fold's run.

    Raises:
        DatasetError: the version is not in folds.
    """
    if not manifest.folds:
        raise DatasetError(f"version {manifest.version} of {config.dataset} is not in folds; prepare one with "
                           "prepare.split={by: fold, column: KEY, folds: 5}, where rows of an equal KEY stay together.")
    return {fold: config.changed(dataset_version=manifest.version, fold=fold, run=f"{config.run}-fold-{fold}" if config.run else None)
            for fold in range(len(manifest.folds))}


def _train_all(trainings: Mapping[int, Config], spark: SparkSession, stop: StopRequest, *, at_once: int, bar: Bar,
               progress: Progress) -> dict[int, TrainResult]:
    """Train, several at once; a fold that fails leaves the others to their ends.

    Raises:
        SparkringError: a fold failed, or was asked to stop.
    """
    done: dict[int, TrainResult] = {}
    failed: list[BaseException] = []
    with ThreadPoolExecutor(at_once, thread_name_prefix="sparkring-fold") as pool:
        try:
            under_way = {pool.submit(train, each, spark=spark, stop=stop): fold for fold, each in trainings.items()}
            for future in as_completed(under_way):
                fold, error = under_way[future], future.exception()
                if error is None:
                    done[fold] = future.result()
                else:
                    failed.append(error)
                if not isinstance(error, Stopped | None):
                    progress.note(f"cross-validate: fold {fold} failed: {error}")
                if not isinstance(error, SparkringError | None):  # a bug, or Spark has gone: the others need not train on
                    stop.ask(f"fold {fold} ended the cross-validation")
                bar.update(len(done))
        except BaseException:  # the pool waits for the folds under way, which need not train to their ends
            stop.ask("an error ended the cross-validation")
            raise
    if failed:
        raise min(failed, key=lambda error: isinstance(error, Stopped))  # Stopped only if nothing else happened
    return done
