"""Batch predictions on Spark: rows of a dataset version, or new raw rows, through the trained network, into Parquet.

    sparkring score local/flights                        # the test split
    sparkring score orders.yaml --input new_orders.csv   # new rows, without labels

    scored = sparkring.predict(orders, config)           # without files: a frame or a stream in, the same with predictions out

``scoring/columns.py`` lists the columns that each task adds.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import TEXT_TASKS, Config
from sparkring.errors import ConfigError, DatasetError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.sources.committed_files import naming_damaged_pages
from sparkring.spark_jobs.exporting.on_spark import model_of
from sparkring.spark_jobs.run.place import with_existing_run
from sparkring.spark_jobs.scoring.columns import MODEL, SPLIT, VERSION, require_free, telling_column
from sparkring.spark_jobs.scoring.latest import Scores, commit_scores, finish_commit, scores_of
from sparkring.spark_jobs.scoring.new_rows import Given, NewRows, new_rows, rows_of
from sparkring.spark_jobs.scoring.portions import Draft, Input, count_rows, key_of, parquet_files
from sparkring.spark_jobs.scoring.predict import Model, class_of, predict_raw, predict_with
from sparkring.spark_jobs.scoring.predict_split import predict_split
from sparkring.spark_jobs.scoring.raw_rows import source_columns
from sparkring.spark_jobs.scoring.split_rows import SplitRows, version_for
from sparkring.spark_jobs.spark.errors import failed_queries_unlogged
from sparkring.spark_jobs.spark.frames import require_spark_frame
from sparkring.spark_jobs.spark.progress import SILENT, Bar, Progress
from sparkring.spark_jobs.spark.session import result_settings, spark_session
from sparkring.version import __version__


@dataclass(frozen=True)
class ScoreResult:
    """Scored rows."""

    url: str
    """Folder of the Parquet files."""
    rows: int
    seconds: float
    reused: bool = False
    """The same scores existed; nothing was computed."""


def score(config: ConfigLike, *, spark: SparkSession | None = None, progress: Progress = SILENT, frame: DataFrame | None = None,
          input: Given | None = None, **keys: Any) -> ScoreResult:  # noqa: A002 (as the command line calls it)
    """Score rows with the trained model of the run of ``config`` and write them into the run's ``scores``.

    A job that is cut off and run again scores only the files that are left: those of a split, or of an ``input`` whose query makes each
    row of one row of a single source.

    Args:
        config: What ``load_config`` takes; names the run (see ``run/place.py``), the split and its ``dataset_version`` (default: the
            one that the model was trained on).
        spark: The session to use; default the active one, or one made from ``config.spark``.
        progress: Where to report.
        frame: Rows to score instead of a split, as the query of ``config.prepare`` yields them, without label and id if there are none.
        input: A file, folder or table to score instead of a split: the query runs with it in place of the config's source. Of several
            sources, those to replace by name.
        keys: Keys of ``score`` or of the whole config that replace those of ``config``, e.g. ``split="train"``.
    Returns:
        The folder of the Parquet files. Of a split they hold the row id, the label, the columns of ``scoring/columns.py``, ``model``,
        ``dataset_version`` and ``split``; of new rows all columns of the rows, then those of ``scoring/columns.py``.
    Raises:
        ConfigError: the run has no trained model, or for ``score.engine=onnx`` no file exported from it; the row id or the label has
            the name of a column that is added; or ``input`` leaves open which source it replaces.
        DatasetError: the dataset version has changed since the model was trained or was encoded in another way, a file differs from
            the committed one, or a page does not match its checksum.
        SourceError: the frame is not Spark's; or the new rows lack a column, have one of a type that the model's features do not accept,
            one with the name of a column that is added, or two of one name; nothing was kept.
        NotFinite: the network's answer for a row is not finite; nothing was kept.
        StorageError: the executors cannot read the dataset.
    """
    if frame is not None and input is not None:
        raise ConfigError("both a frame and an input are given, and each is what to score; give one of them.")
    if frame is not None:
        require_spark_frame(frame, what="the frame to score")
        if frame.isStreaming:
            raise ConfigError("the frame to score is a stream, which has no end; use sparkring.predict(frame, config) and its writeStream.")
    config = with_existing_run(config_of_job(score, config, keys, section="score"), progress=progress)
    job = _Job(config, model_of(config.run_url, config.score.engine), open_store(config.scores), progress, time.perf_counter())
    finish_commit(job.store)
    given = spark or (frame.sparkSession if frame is not None else None)
    if frame is None and input is None:
        return job.score_split(given)
    session = spark_session(config.spark, app_name=f"sparkring {config.name}", given=given)
    with result_settings(session), failed_queries_unlogged():
        features = source_columns(job.model.card)
        rows: AbstractContextManager[NewRows] = nullcontext(rows_of(frame)) if frame is not None else new_rows(
            session, config, input or "", features=features)
        with rows as found:
            return job.score_new(found)


def predict(frame: DataFrame, config: ConfigLike, **keys: Any) -> DataFrame:
    """Add predictions to rows as the query of ``config.prepare`` yields them; neither an id nor a label is needed.

    Args:
        frame: The features' columns and any others; it may be a stream (``readStream``).
        config: What ``load_config`` takes; names the run whose model predicts (see ``run/place.py``), and the keys of ``score`` but its
            ``split``.
        keys: Keys of ``score`` or of the whole config that replace those of ``config``, e.g. ``top_k=3``.
    Returns:
        All columns of ``frame``, then those of the model's task (``scoring/columns.py``). Nothing is computed yet.
    Raises:
        ConfigError: the run has no trained model; or, for ``engine="onnx"``, no file exported from it.
        SourceError: the frame is not Spark's, a feature is missing or has a type that prepare refuses for it, or a column has the name of
            one that is added.
        EnvironmentProblem: over Spark Connect, the session's time zone would change a feature.
    """
    require_spark_frame(frame, what="the frame to predict")
    config = with_existing_run(config_of_job(predict, config, keys, section="score"))
    model = model_of(config.run_url, config.score.engine)
    return predict_with(frame, model, top_k=config.score.top_k, batch_rows=config.score.batch_rows)


@dataclass(frozen=True)
class _Job:
    """One scoring."""

    config: Config
    model: Model
    store: Store
    progress: Progress
    began: float

    def score_split(self, given: SparkSession | None) -> ScoreResult:
        """Score a split of a dataset version."""
        config, card = self.config, self.model.card
        manifest, name = version_for(card, config.dataset_version), config.score.split
        folder = key_of({**self._identity, "content_id": manifest.content_id, "version": manifest.version, "split": name})
        before = scores_of(self.store, name)
        if before is not None and before.folder == folder and parquet_files(self.store, folder):
            return self._reused(folder, before.rows, f"the {name} split of dataset version {manifest.version}")
        session = spark_session(config.spark, app_name=f"sparkring {config.name}", given=given)
        with self.progress.stage("score") as bar, result_settings(session):
            bar.update(0, text=f"{name} of version {manifest.version}")
            rows, split = SplitRows.of(manifest, card.dataset_url, name), manifest.splits[name]
            draft = Draft(self.store, folder, telling=telling_column(card.task), row_id=manifest.row_id, digested=True)

            def scored(names: Sequence[str]) -> DataFrame:
                return self._split_scores(session, rows.some(names), manifest)

            with naming_damaged_pages(open_store(card.dataset_url), split.files):
                self._write(draft, [Input(file.path, file.bytes) for file in split.files], scored, bar)
            if draft.digest != split.rows_digest:
                draft.delete()
                raise DatasetError(f"the scored rows have the digest {draft.digest}, the manifest says {split.rows_digest} of its "
                                   f"{split.rows} rows; files were exchanged: run `sparkring datasets verify`. Nothing was kept.")
            return self._committed(folder, draft.rows, split=name, manifest=manifest)

    def score_new(self, new: NewRows) -> ScoreResult:
        """Score rows that the caller brought."""
        folder = uuid.uuid4().hex[:16] if new.identity is None else key_of(
            {**self._identity, **new.identity, "prepare": self.config.prepare.model_dump(mode="json")})
        if new.identity is not None and parquet_files(self.store, folder):
            return self._reused(folder, count_rows(self.store, folder), "these rows")
        if new.left_out:
            self.progress.note(f"score: the input lacks what {', '.join(new.left_out)} is made of; left out")
        with self.progress.stage("score") as bar:
            bar.update(0, text="new rows")
            self._new_scores(new.frame)  # what is wrong with its columns is said before anything is written
            row_id = self.config.prepare.id_column
            draft = Draft(self.store, folder, telling=telling_column(self.model.card.task), digested=False,
                          row_id=row_id if row_id in new.frame.columns else None)
            if new.of is not None:
                of = new.of
                self._write(draft, new.files, lambda names: self._new_scores(of(names)), bar)
            elif not draft.portions:
                draft.add(self._new_scores(new.frame))
            return self._committed(folder, draft.rows)

    @property
    def _identity(self) -> dict[str, Any]:
        return {"weights": self.model.card.weights_sha256, "top_k": self.config.score.top_k, "engine": self.config.score.engine,
                "code": __version__}

    def _split_scores(self, session: SparkSession, rows: SplitRows, manifest: Manifest) -> DataFrame:
        keep = [manifest.row_id] if manifest.task in TEXT_TASKS else [manifest.row_id, manifest.label]
        require_free(keep, (MODEL, VERSION, SPLIT))
        scored = predict_split(session, rows, self.model, keep=keep, batch_rows=self.config.score.batch_rows, top_k=self.config.score.top_k)
        if manifest.task == "multiclass":
            scored = _named_classes(scored, manifest)
        return scored.select("*", sf.lit(self.model.card.weights_sha256[:16]).alias(MODEL),
                             sf.lit(manifest.version).cast("bigint").alias(VERSION), sf.lit(self.config.score.split).alias(SPLIT))

    def _new_scores(self, rows: DataFrame) -> DataFrame:
        return predict_raw(rows, self.model, top_k=self.config.score.top_k, batch_rows=self.config.score.batch_rows)

    def _write(self, draft: Draft, inputs: Sequence[Input], scored: Any, bar: Bar) -> None:
        if draft.portions:
            done = sum(len(portion.inputs) for portion in draft.portions)
            self.progress.note(f"score: resuming; {done} of {len(inputs)} files are done")
        draft.write(inputs, scored, report=lambda done: bar.update(0, text=f"{done} of {len(inputs)} files") if done else None)

    def _reused(self, folder: str, rows: int, what: str) -> ScoreResult:
        url = f"{self.store.url}/{folder}"
        self.progress.note(f"score: this model has scored {what} already; reusing {url}")
        return ScoreResult(url, rows, time.perf_counter() - self.began, reused=True)

    def _committed(self, folder: str, rows: int, *, split: str | None = None, manifest: Manifest | None = None) -> ScoreResult:
        card = self.model.card
        commit_scores(self.store, Scores(
            folder=folder, rows=rows, split=split, weights_sha256=card.weights_sha256, dataset_url=card.dataset_url,
            dataset_version=manifest.version if manifest else card.dataset_version,
            content_id=manifest.content_id if manifest else card.content_id, created_at=datetime.now(UTC).isoformat(timespec="seconds")))
        return ScoreResult(f"{self.store.url}/{folder}", rows, time.perf_counter() - self.began)


def _named_classes(scored: DataFrame, manifest: Manifest) -> DataFrame:
    """Replace the numbers of the label's classes by the source's own values, as the predictions have them."""
    value = class_of(named(manifest.label), manifest.preprocessing)
    return scored.select([value.alias(name) if name == manifest.label else named(name) for name in scored.columns])
