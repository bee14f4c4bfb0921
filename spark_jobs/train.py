"""Train a model on a dataset version: find the run, start rings until one of them reaches the end, return the result.

    sparkring train local/flights

A ring that fails is started again from the last checkpoint (spark_jobs/recovery). The same command resumes a run that was ended; for a
run that is done it reports that and trains nothing. Another dataset version, model or training is another run, beside the earlier ones.
The run folder and a run's identity: spark_jobs/run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import Config, RingConfig, TrainConfig
from sparkring.errors import ConfigError, DatasetError
from sparkring.pipelines.data.dataset.folds import require_a_fold
from sparkring.pipelines.data.dataset.integrity import require_sealed
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.retry import retry
from sparkring.pipelines.training.evaluation.score import METRICS
from sparkring.pipelines.training.job.job import TrainJob, TrainSummary, layout_of
from sparkring.spark_jobs.auto_layout import LayoutChooser
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.recovery.supervisor import Supervisor
from sparkring.spark_jobs.run.batch import with_batch
from sparkring.spark_jobs.run.folder import RunFolder
from sparkring.spark_jobs.run.given import require_weights_fit, with_given_weights
from sparkring.spark_jobs.run.identity import identity_of, parts_of_step
from sparkring.spark_jobs.run.place import with_run
from sparkring.spark_jobs.run.progress_tail import progress_shown, steps_done
from sparkring.spark_jobs.spark.progress import SILENT, Bar, Progress
from sparkring.spark_jobs.tracking.following import require_mlflow, tracked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class TrainResult:
    """The result of a finished run."""

    run: str
    """The run's name."""
    url: str
    """The run's folder: model, checkpoints, events."""
    reused: bool
    """The run was done already; nothing was trained."""
    resumed_at: int
    """Optimizer steps that earlier generations had done."""
    epochs: int
    """Epochs that were trained."""
    steps: int
    """Optimizer steps of the whole run."""
    validation: dict[str, float]
    """Held-out metrics of the best epoch."""
    seconds: float
    failed_checkpoints: int = 0
    """Checkpoints that could not be written while this call trained; the ones before stayed."""
    ended_early: str = ""
    """Why the run ended before its last epoch; empty if it did not."""


def train(config: ConfigLike, *, spark: SparkSession | None = None, progress: Progress = SILENT,
          stop: StopRequest | None = None, work: Callable[..., Any] | None = None, **keys: Any) -> TrainResult:
    """Train the run of ``config``, or resume it.

    Args:
        config: What ``load_config`` takes; names the dataset version, the model, the optimizer and the ring.
        spark: The session to start the ring in; default the active one, or one made from ``config.spark``.
        progress: Where to report steps and losses.
        stop: Lets another thread, or a signal's handler, ask the run to save and end.
        work: Runs on each rank in place of ``train_rank``, with the same arguments; ``sparkring chaos`` injects faults with it.
        keys: Keys of ``train`` or of the whole config that replace those of ``config``, e.g. ``epochs=2``.
    Returns:
        The result of the run.
    Raises:
        DatasetVersionNotFound: there is no such version; nothing was written.
        DatasetChanged: its manifest was edited after it was committed; nothing was written.
        ConfigError: ``model.weights`` does not fit the model or the dataset; no rank was started.
        LayoutRefused: the model does not fit the layout of ``train.parallel``; nothing was written.
        RunFolderMismatch: ``config.run`` names a run that was begun with another config; nothing was written.
        DocumentDamaged: a document of the run folder cannot be read; nothing was written.
        EnvironmentProblem: Spark cannot run a ring, or its executors cannot.
        NotEnoughSlots: Spark cannot run that many ranks at once.
        RankFailed, RankDied: a rank raised or died, and restarts did not help or are switched off
            (``train.recovery.restarts``); the same call resumes from the last checkpoint.
        Stopped: ``stop`` asked for it; the same call resumes.
        StorageError, ConfigError: nothing can be written to the run folder; no rank was started.
    """
    began = time.perf_counter()
    config = config_of_job(train, config, keys, section="train")
    require_mlflow(config)
    dataset = Dataset(config.dataset)
    manifest = dataset.manifest(config.dataset_version, fold=config.fold)
    require_sealed(dataset, manifest)
    _require_rows(manifest, dataset.url)
    _require_metric(config.train, manifest)
    config = with_batch(with_given_weights(config), manifest, progress)
    layout_of(config, manifest)  # refuses a layout that does not fit before anything is written
    config = with_run(config, manifest)
    folder, stop = RunFolder(config.run_url), stop or StopRequest()
    failed_checkpoints = 0
    if folder.committed() < 0:
        require_weights_fit(config, manifest, progress)
    with folder.locked(lost=stop.ask):
        identity = folder.claim(identity_of(config, manifest), dataset_url=dataset.url, lanes_given=config.train.lanes is not None)
        summary = folder.result()
        reused = summary is not None
        with tracked(config, progress=progress):
            if summary is None:
                with progress.stage("train") as bar:
                    ring = _SparkRing(folder, dataset.url, manifest, lanes=identity["lanes"], spark=spark, progress=progress, bar=bar,
                                      work=work)
                    ring.config = config.train.ring
                    summary = _supervised(ring, config, stop)
                failed_checkpoints = ring.failed_checkpoints
            else:
                progress.note(f"training: this run is done already ({summary.steps} steps); reusing {folder.url}")
    return TrainResult(run=folder.name, url=folder.url, reused=reused, resumed_at=summary.resumed_at, steps=summary.steps,
                       epochs=config.train.epochs if summary.epochs is None else summary.epochs, validation=summary.validation,
                       seconds=time.perf_counter() - began, failed_checkpoints=failed_checkpoints, ended_early=summary.ended_early)


def _require_rows(manifest: Manifest, url: str) -> None:
    """Check that train and validation have rows and, for a binary task, rows of both labels."""
    require_a_fold(manifest, url)
    for name in ("train", "validation"):
        split = manifest.splits.get(name)
        if split is None or not split.rows:
            raise DatasetError(f"version {manifest.version} of {url} has no rows in its {name} split, which training needs; "
                               f"{_other_splits(manifest, url)}.")
        if manifest.task == "binary" and split.positives in (0, split.rows):
            raise DatasetError(f"version {manifest.version} of {url}: the {name} split needs rows of both labels, found {split.rows} rows, "
                               f"{split.positives} of them with label 1; {_other_splits(manifest, url)}.")


def _require_metric(train: TrainConfig, manifest: Manifest) -> None:
    """Check that the metric of early stopping is one of the task's."""
    known = METRICS[manifest.task]
    if train.early_stopping is not None and train.early_stopping.metric not in known:
        raise ConfigError(f"train.early_stopping.metric={train.early_stopping.metric} is not measured for the task {manifest.task}; set it "
                          f"to one of {', '.join(known)}.")


def _other_splits(manifest: Manifest, url: str) -> str:
    """The advice to get a version with suitable splits."""
    if "adopted" not in manifest.recipe:
        return "change prepare.split and prepare a new version"
    return (f"delete {url}/_versions and adopt the files again with --split train=FOLDER --split validation=FOLDER, or prepare a dataset "
            "from them, as a source of format parquet")


def _supervised(ring: _SparkRing, config: Config, stop: StopRequest) -> TrainSummary:
    """Train to the end and store the result; if no rank ever began, give the folder up again."""
    idle = parts_of_step(config) - ring.lanes
    if idle > 0:
        ring.progress.note(f"training: {idle} ranks or micro-batches get no rows, since this run was begun with {ring.lanes} lanes")
    try:
        ring.folder.require_writable()
        ring.require_barrier_stages()
        fits = partial(_fits, config, ring.manifest)
        summary = Supervisor(config, ring, works=fits, stop=stop, progress=ring.progress).run()
    except BaseException:
        ring.folder.abandon_if_unused()
        raise
    ring.folder.finish(summary)
    return summary


def _fits(config: Config, manifest: Manifest, train_config: TrainConfig) -> bool:
    """Whether the config's model fits the layout of ``train_config``."""
    try:
        layout_of(config.changed(train=train_config), manifest)
    except ConfigError:
        return False
    return True


class _SparkRing:
    """The rings of one run, in Spark: the supervisor starts and observes them (``recovery/ring.py``)."""

    def __init__(self, folder: RunFolder, dataset_url: str, manifest: Manifest, *, lanes: int, spark: SparkSession | None,
                 progress: Progress, bar: Bar, work: Callable[..., Any] | None) -> None:
        self.folder, self.manifest, self.lanes, self.progress = folder, manifest, lanes, progress
        self._dataset_url, self._spark, self._bar, self._work = dataset_url, spark, bar, work
        self._generation = -1
        self._accepts_stop = False
        """Whether this generation has ranks, running or being started, that will see a request to stop."""
        self.failed_checkpoints = 0
        """Checkpoints that could not be written, of all generations so far."""
        self.config = RingConfig()
        """How ranks are started; slots are counted for such ranks."""

    def require_barrier_stages(self) -> None:
        """Check that a session that was given has them, before it is asked for slots; a new one is checked by ``run_ring``."""
        from sparkring.spark_jobs.spark.databricks import require_barrier_stages

        if self._spark is not None:
            require_barrier_stages(self._spark)

    def slots(self) -> int | None:
        """See Ring."""
        from sparkring.spark_jobs.launch.gpus.source import rank_resources
        from sparkring.spark_jobs.spark.slots import slots_of

        return None if self._spark is None else slots_of(self._spark, rank_resources(self._spark, self.config))

    def grows_on_demand(self) -> bool:
        """See Ring."""
        from sparkring.spark_jobs.spark.slots import has_dynamic_allocation

        return self._spark is not None and has_dynamic_allocation(self._spark)

    def run(self, config: Config, left_out: tuple[str, ...], *, stop: StopRequest) -> TrainSummary:
        """See Ring."""
        from sparkring.pipelines.training.train_rank import train_rank  # imports torch, which a reused run does not need
        from sparkring.spark_jobs.ring import run_ring
        from sparkring.spark_jobs.spark.session import spark_session

        stop.require_none()  # and after all that takes seconds: while there are no ranks, there is nothing to save
        self._spark = self._spark or spark_session(config.spark, app_name=f"sparkring {config.name}")
        stop.require_none()
        job = self._next_job(config, self._spark)
        stop.require_none()
        done = self.committed()
        if done >= 0:
            self.progress.note(f"training: resuming from the checkpoint after {done} steps")
        self._accepts_stop = True
        try:
            with progress_shown(job, self._bar, self.progress, on_failed_checkpoint=self._count_failed_checkpoint):
                results = run_ring(self._work or train_rank, job.model_dump(mode="json"), num_ranks=job.config.train.num_ranks,
                                   spark=self._spark, config=job.config.train.ring, left_out=left_out)
        finally:
            self._accepts_stop = False
        return TrainSummary.model_validate(results[0])

    def ask_to_stop(self) -> bool:
        """See Ring."""
        if self._accepts_stop:
            self.folder.ask_to_stop(self._generation)
        return self._accepts_stop

    def committed(self) -> int:
        """See Ring."""
        return self.folder.committed()

    def steps_of(self, rank: int) -> int:
        """See Ring."""
        return steps_done(self.folder.url, generation=self._generation, rank=rank)

    def _next_job(self, config: Config, spark: SparkSession) -> TrainJob:
        """The next generation's job; with ``auto`` the planner chooses its layout."""
        predicted_s = None
        if config.train.parallel.auto:
            chooser = LayoutChooser(self.folder.store, dataset_url=self._dataset_url, manifest=self.manifest, lanes=self.lanes,
                                    progress=self.progress)
            config, predicted_s = chooser.choose(config, spark)
        self._generation = retry(partial(self.folder.claim_generation, at_least=self._generation + 1))
        return TrainJob(config=config, dataset_url=self._dataset_url, dataset_version=self.manifest.version, run_url=self.folder.url,
                        generation=self._generation, lanes=self.lanes, predicted_s=predicted_s)

    def _count_failed_checkpoint(self) -> None:
        self.failed_checkpoints += 1
