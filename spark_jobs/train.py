"""Train a model on a dataset version: check the run folder, start the ring, follow its events, come back with the result.

    sparkring train local/flights

What fails on the way is started again from the last checkpoint (spark_jobs/recovery). The same call again goes on from there too, or,
when the run is done, says so and trains nothing.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkring.conf.schema import Config, TrainConfig
from sparkring.conf.schema.train import SMALLEST_DEFAULT_BATCH, default_batch_rows
from sparkring.errors import CommitConflict, ConfigError, DatasetError, RunFolderMismatch, SparkringError, StorageError
from sparkring.pipelines.data.dataset.integrity import require_sealed
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.order.row_order import default_lanes
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.documents import read_document, read_model
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.retry import retry
from sparkring.pipelines.training.checkpoints.store import DATA, Checkpoints
from sparkring.pipelines.training.events.slow_ranks import Slow
from sparkring.pipelines.training.events.writer import FOLDER as EVENTS
from sparkring.pipelines.training.events.writer import EventTail, Record, event_files
from sparkring.pipelines.training.job.job import TrainJob, TrainSummary, layout_of
from sparkring.pipelines.training.strategies.signals import ask_to_stop, claim_name
from sparkring.spark_jobs.auto_layout import LayoutChooser
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.recovery.supervisor import Supervisor
from sparkring.spark_jobs.spark.progress import SILENT, Bar, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDENTITY = "run.json"
RESULT = "result.json"
LOCK = ".lock"
FEW_STEPS = 10
"""Optimizer steps an epoch under which a batch that the config names is worth a warning."""
WRITTEN = (EVENTS, DATA)
"""Folders of a run that ranks write to."""
FREE_TO_CHANGE = {"num_ranks", "lanes", "checkpoint_steps", "checkpoint_seconds", "keep_checkpoints", "on_nonfinite", "recovery",
                  "reader_threads", "record_rows", "ring", "bucket_mb", "parallel", "memory_mb", "cache_mb", "cache_folder"}
"""Train settings that do not change what is learned, so a run may go on under others."""


@dataclass(frozen=True)
class TrainResult:
    """What a finished run left."""

    url: str
    """The run's folder: model, checkpoints, events."""
    reused: bool
    """The run was done already; nothing was trained."""
    resumed_at: int
    """Optimizer steps that earlier generations had done."""
    epochs: int
    steps: int
    """Optimizer steps of the whole run."""
    validation: dict[str, float]
    """Held-out metrics of the best epoch."""
    seconds: float
    failed_checkpoints: int = 0
    """Checkpoints that could not be written while this call trained; the ones before stayed."""


def train(config: Config, *, spark: SparkSession | None = None, progress: Progress = SILENT,
          stop: StopRequest | None = None, work: Callable[..., Any] | None = None) -> TrainResult:
    """Train, or go on training, the run of ``config``.

    Args:
        config: Names the dataset version, the model, the optimizer and the ring.
        spark: The session to start the ring in; default the active one, or one made from ``config.spark``.
        progress: Where to report steps and losses.
        stop: By which another thread, or a signal's handler, may ask the run to save and end.
        work: What each rank does in place of ``train_rank``, with the same arguments: ``sparkring chaos`` strikes it meanwhile.
    Returns:
        What the run left.
    Raises:
        DatasetVersionNotFound: there is no such version; nothing was written.
        DatasetChanged: its manifest was edited after it was committed; nothing was written.
        LayoutRefused: the model cannot be laid out as ``train.parallel`` says; nothing was written.
        RunFolderMismatch: the folder belongs to a run with another config; nothing was written.
        DocumentDamaged: what the folder says of its run cannot be read; nothing was written.
        NotEnoughSlots: Spark cannot run that many ranks at once.
        RankFailed, RankDied, ...: a rank raised or died, and starting again did not help, or is switched off
            (``train.recovery.restarts``); the same call again goes on from the last checkpoint.
        Stopped: ``stop`` asked for it; the same call again goes on.
        StorageError, ConfigError: nothing can be written to the run folder; no rank was started.
    """
    began = time.perf_counter()
    dataset = Dataset(config.dataset)
    manifest = dataset.manifest(config.dataset_version)
    require_sealed(dataset, manifest)
    _require_rows(manifest, dataset.url)
    config = _with_batch(config, manifest, progress)
    layout_of(config, manifest)  # refuses what cannot be laid out, before anything is written
    store, stop = open_store(config.run), stop or StopRequest()
    failed = 0
    with ExitStack() as held:
        with _needed_to_write(store):
            held.enter_context(store.lock(LOCK, busy=f"{store.url} is being trained by another process; wait for it, or set another "
                                          "workspace.", lost=partial(stop.ask, "another process has taken over the run")))
            identity = _claim(store, config, manifest)
        summary = _finished(store)
        reused = summary is not None
        if summary is None:
            run = _Run(store, dataset.url, manifest, identity["lanes"], spark, progress, work)
            summary = _supervised(run, config, stop)
            failed = run.failed_checkpoints
        else:
            progress.note(f"training: this run is done already ({summary.steps} steps); reusing {store.url}")
    return TrainResult(url=store.url, reused=reused, resumed_at=summary.resumed_at, epochs=config.train.epochs, steps=summary.steps,
                       validation=summary.validation, seconds=time.perf_counter() - began, failed_checkpoints=failed)


def _with_batch(config: Config, manifest: Manifest, progress: Progress) -> Config:
    """The config with a batch that fits the train rows; reports a chosen one, and one that leaves an epoch few steps."""
    rows = manifest.splits["train"].rows
    fitted = config.fitted_to(rows)
    batch_rows = fitted.train.step_rows
    steps = -(-rows // batch_rows)
    if config.train.batch_rows is None:
        progress.note(f"training: batches of {batch_rows} rows, {steps} steps an epoch (train.batch_rows sets another size)")
    elif steps < FEW_STEPS and batch_rows > SMALLEST_DEFAULT_BATCH:
        progress.note(f"training: warning: train.batch_rows={batch_rows} makes only {steps} step{'s' if steps > 1 else ''} an epoch of "
                      f"{rows} train rows, {steps * config.train.epochs} in all; leave train.batch_rows out to have a size that fits "
                      f"({default_batch_rows(rows)}), or raise train.epochs")
    return fitted


@contextmanager
def _needed_to_write(store: Store) -> Iterator[None]:
    """Tell of a folder that cannot be written to, or of a full disk, in a sentence."""
    try:
        yield
    except SparkringError:
        raise
    except OSError as error:
        raise StorageError(f"{error.filename or store.url} cannot be written: {error.strerror or error}; the run folder {store.url} has to "
                           "be one where this user may write and that has room: set another workspace, or give leave or room.") from None


def _try_to_write(store: Store) -> None:
    """Write where ranks will, and take it back: before any of them is started for nothing."""
    for folder in WRITTEN:
        probe = f"{folder}/.{uuid.uuid4().hex}.probe"
        store.put(probe, b"")
        store.delete(probe)


def _supervised(run: _Run, config: Config, stop: StopRequest) -> TrainSummary:
    """Train to the end and note the result; where no rank ever began, the folder is given up again."""
    idle = _dealt_to(config) - run.lanes
    if idle > 0:
        run.progress.note(f"training: {idle} ranks or micro-batches get no rows, since this run was begun with {run.lanes} lanes")
    try:
        with _needed_to_write(run.store):
            _try_to_write(run.store)
        summary = Supervisor(config, run, works=partial(_can_be_laid_out, config, run.manifest), stop=stop, progress=run.progress).run()
    except BaseException:
        with suppress(OSError):  # storage that is away is not what this ended with
            if not event_files(run.store.url):
                run.store.delete(IDENTITY)  # e.g. too few slots: what this attempt asked for must not bind the next one
        raise
    run.store.put(RESULT, summary.model_dump_json(indent=1, exclude={"interrupted"}).encode())
    return summary


def _can_be_laid_out(config: Config, manifest: Manifest, train_config: TrainConfig) -> bool:
    """Whether the config's model can be laid out so."""
    try:
        layout_of(config.model_copy(update={"train": train_config}), manifest)
    except ConfigError:
        return False
    return True


class _Run:
    """A run whose generations are rings in Spark; what the supervisor keeps going."""

    def __init__(self, store: Store, dataset_url: str, manifest: Manifest, lanes: int, spark: SparkSession | None,
                 progress: Progress, work: Callable[..., Any] | None) -> None:
        self.store, self.manifest, self.lanes, self.progress = store, manifest, lanes, progress
        self._dataset_url, self._spark, self._work = dataset_url, spark, work
        self._generation = -1
        self._hears = False
        """Whether ranks run, or are just being started, that listen to what is said to this generation."""
        self.failed_checkpoints = 0
        """Those that could not be written, of all generations so far."""

    def slots(self) -> int | None:
        """See Ring."""
        from sparkring.spark_jobs.spark.slots import slots_of

        return None if self._spark is None else slots_of(self._spark)

    def grows_on_demand(self) -> bool:
        """See Ring."""
        from sparkring.spark_jobs.spark.slots import has_dynamic_allocation

        return self._spark is not None and has_dynamic_allocation(self._spark)

    def run(self, config: Config, left_out: tuple[str, ...]) -> TrainSummary:
        """See Ring."""
        from sparkring.pipelines.training.train_rank import train_rank  # brings torch, which a reused run does not need
        from sparkring.spark_jobs.ring import run_ring
        from sparkring.spark_jobs.spark.session import spark_session

        self._spark = self._spark or spark_session(config.spark, app_name=f"sparkring {config.name}")
        predicted_s = None
        if config.train.parallel.auto:
            chooser = LayoutChooser(self.store, dataset_url=self._dataset_url, manifest=self.manifest, lanes=self.lanes,
                                    progress=self.progress)
            config, predicted_s = chooser.choose(config, self._spark)
        self._generation = retry(partial(_claim_generation, self.store, at_least=self._generation + 1))
        job = TrainJob(config=config, dataset_url=self._dataset_url, dataset_version=self.manifest.version, run_url=self.store.url,
                       generation=self._generation, lanes=self.lanes, predicted_s=predicted_s)
        done = self.committed()
        if done >= 0:
            self.progress.note(f"training: going on from the checkpoint after {done} steps")
        self._hears = True
        try:
            with self.progress.stage("train") as bar, _following(job, bar, self.progress, self._count_failed):
                results = run_ring(self._work or train_rank, job.model_dump(mode="json"), num_ranks=config.train.num_ranks,
                                   spark=self._spark, config=config.train.ring, left_out=left_out)
        finally:
            self._hears = False
        return TrainSummary.model_validate(results[0])

    def _count_failed(self) -> None:
        self.failed_checkpoints += 1

    def ask_to_stop(self) -> bool:
        """See Ring."""
        if self._hears:
            ask_to_stop(self.store, self._generation)
        return self._hears

    def committed(self) -> int:
        """See Ring."""
        return max(retry(Checkpoints(self.store.url).numbers), default=-1)

    def steps_of(self, rank: int) -> int:
        """See Ring."""
        steps_per_epoch = done = -1
        for record in EventTail(self.store.url, generation=self._generation, rank=rank).new_records():  # and where it went on by itself
            if record["event"] == "start":
                steps_per_epoch = record["steps_per_epoch"]
                done = record["epoch"] * steps_per_epoch + record["step"]
            elif record["event"] == "step":
                done = record["epoch"] * steps_per_epoch + record["step"] + 1
        return done


@contextmanager
def _following(job: TrainJob, bar: Bar, progress: Progress, not_written: Callable[[], None]) -> Iterator[None]:
    """Show rank 0's events in ``bar`` while the block runs, and tell of each checkpoint that was not written.

    Nothing but the run folder is needed for it.
    """
    stop = threading.Event()
    tail = EventTail(job.run_url, generation=job.generation, rank=0)
    show = _shower(job.config.train.epochs, bar, progress, not_written)

    def follow() -> None:
        while not stop.wait(tail.every_s):
            show(tail.new_records())
        show(tail.new_records())

    thread = threading.Thread(target=follow, name="sparkring-follow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _shower(epochs: int, bar: Bar, progress: Progress, not_written: Callable[[], None]) -> Callable[[list[Record]], None]:
    """A function that turns rank 0's records into a bar over all steps of the run; a plan that proved wrong is noted once."""
    steps_per_epoch = 0
    validation = ""
    warned = False

    def show(records: list[Record]) -> None:
        nonlocal steps_per_epoch, validation, warned
        last: Record | None = None
        for record in records:
            if record["event"] == "start":
                steps_per_epoch = record["steps_per_epoch"]
            elif record["event"] == "epoch" and record["validation"]:
                validation = f", held-out {_figures(record['validation'])}"
            elif record["event"] == "step":
                last = record
            elif record["event"] == "slow" and not record["over"]:
                progress.note(f"training: {Slow.of(record).text()}")
            elif record["event"] == "rollback" or record.get("what") == "checkpoint":
                progress.note(f"training: {record['text']}")
                if record["event"] == "warning":
                    not_written()
            elif record["event"] == "plan" and record["text"] and not warned:
                progress.note(f"training: {record['text']}")
                warned = True
        if last is not None:
            bar.update(last["epoch"] * steps_per_epoch + last["step"] + 1, total=epochs * steps_per_epoch,
                       text=f"epoch {last['epoch'] + 1} of {epochs}, loss {_loss(last['loss'])}{validation}")

    return show


def _loss(value: float | None) -> str:
    """Null stands for one that was not finite."""
    return "not finite" if value is None else f"{value:.4f}"


def _figures(metrics: dict[str, float]) -> str:
    """The first two, e.g. ``loss 0.4, AUC 0.7``."""
    return ", ".join(f"{'AUC' if name == 'auc' else name} {value:.4f}" for name, value in list(metrics.items())[:2])


def _require_rows(manifest: Manifest, url: str) -> None:
    """See that train and validation have rows, and both labels where the task is to tell two labels apart."""
    for name in ("train", "validation"):
        split = manifest.splits.get(name)
        if split is None or not split.rows:
            raise DatasetError(f"version {manifest.version} of {url} has no rows in its {name} split, which training needs; "
                               f"{_other_splits(manifest, url)}.")
        if manifest.task == "binary" and split.positives in (0, split.rows):
            raise DatasetError(f"version {manifest.version} of {url}: the {name} split needs rows of both labels, found {split.rows} rows, "
                               f"{split.positives} of them with label 1; {_other_splits(manifest, url)}.")


def _other_splits(manifest: Manifest, url: str) -> str:
    """How to get a version whose splits serve."""
    if "adopted" not in manifest.recipe:
        return "change prepare.split and prepare a new version"
    return (f"delete {url}/_versions and adopt the files again with --split train=FOLDER --split validation=FOLDER, or prepare a dataset "
            "from them, as a source of format parquet")


def _claim(store: Store, config: Config, manifest: Manifest) -> dict[str, Any]:
    """Make the run folder this config's, or check that it is; returns its identity."""
    mine = _identity(config, manifest)
    try:
        store.put_if_absent(IDENTITY, json.dumps(mine, indent=1).encode())
        return mine
    except CommitConflict:
        theirs = read_document(store, IDENTITY, keys=("content_id", "model", "train", "lanes"),
                               remedy="bring it back from a copy, or delete that folder to start over")
    if config.train.lanes is None:
        mine["lanes"] = theirs.get("lanes")  # fixed at the first start, whatever the ring's width is now
    for key in sorted(mine.keys() | theirs.keys()):
        if mine.get(key) != theirs.get(key):
            where, found, wanted = _first_difference(key, theirs.get(key), mine.get(key))
            raise RunFolderMismatch(f"{store.url} holds a run with {where}={found}, this config says {wanted}; "
                                    "set another workspace, or delete that folder to start over.")
    return theirs


def _identity(config: Config, manifest: Manifest) -> dict[str, Any]:
    """What a run is: everything that changes what it learns."""
    batch_norm = getattr(config.model, "norm", None) == "batch"
    return {
        "format": 1,
        **({"micro_batches": config.train.num_micro_batches} if batch_norm else {}),  # else they change nothing
        "content_id": manifest.content_id,
        "dataset_version": manifest.version,
        "model": config.model.model_dump(mode="json"),
        "train": config.train.model_dump(mode="json", exclude=FREE_TO_CHANGE),
        "lanes": config.train.lanes or _lanes(config),
    }


def _lanes(config: Config) -> int:
    """For a first start: twice as many as needed where the layout is chosen later, so that more numbers of micro-batches divide them."""
    return default_lanes(_dealt_to(config)) * (2 if config.train.parallel.auto else 1)


def _dealt_to(config: Config) -> int:
    """Into how many parts a step's rows are dealt."""
    return config.train.num_micro_batches if config.train.parallel.pipelined else config.train.num_ranks


def _first_difference(key: str, theirs: Any, mine: Any) -> tuple[str, Any, Any]:
    """The config key of the first difference, its value there and here."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for inner in sorted(theirs.keys() | mine.keys()):
            if theirs.get(inner) != mine.get(inner):
                return _first_difference(f"{key}.{inner}", theirs.get(inner), mine.get(inner))
    return key, theirs, mine


def _finished(store: Store) -> TrainSummary | None:
    try:
        return read_model(store, RESULT, TrainSummary, expected="the summary of a run",
                          remedy="delete it and train again, which goes on from the last checkpoint")
    except FileNotFoundError:
        return None


def _claim_generation(store: Store, *, at_least: int = 0) -> int:
    """A number that no other driver has, not even one that has lost its lock and does not know yet."""
    generation = max(at_least, _next_generation(store.url))
    while True:
        try:
            store.put_if_absent(claim_name(generation), b"{}\n")
            return generation
        except CommitConflict:
            generation += 1


def _next_generation(run_url: str) -> int:
    """One more than any that has left a trace: a rank may have died before its first events were in storage."""
    begun = [int(name.split("-")[0]) for name in event_files(run_url)] + Checkpoints(run_url).generations()
    return max(begun, default=-1) + 1
