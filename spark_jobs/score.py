"""Batch predictions on Spark: rows of a dataset version, or new raw rows, through the trained network, into Parquet.

    sparkring score local/flights

``scoring/predict.py`` lists the columns that each task adds.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import Config
from sparkring.errors import DatasetChanged, DatasetError, NotFinite, SourceError
from sparkring.pipelines.data.dataset.integrity import check_footers
from sparkring.pipelines.data.dataset.manifest import Manifest, Split
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.order.rowhash import add, rows_digest, to_hex
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.job.model_files import ModelCard, load_card
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.sources.committed_files import naming_damaged_pages, read_committed
from sparkring.spark_jobs.etl.sources.literal_paths import literal
from sparkring.spark_jobs.etl.writing.staging import writing_area
from sparkring.spark_jobs.scoring.columns import NATS, PROBABILITY, SPLIT, require_free
from sparkring.spark_jobs.scoring.latest import Scores, commit_scores, delete_draft, draft_of, finish_commit, scores_of
from sparkring.spark_jobs.scoring.predict import predict
from sparkring.spark_jobs.scoring.raw_rows import encode_raw
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.spark.session import result_settings, spark_path, spark_session

Read = TypeVar("Read")


@dataclass(frozen=True)
class ScoreResult:
    """Scored rows."""

    url: str
    """Folder of the Parquet files."""
    rows: int
    seconds: float
    reused: bool = False
    """The same scores existed; nothing was computed."""


def score(config: Config, *, spark: SparkSession | None = None, progress: Progress = SILENT, frame: DataFrame | None = None) -> ScoreResult:
    """Score rows with the trained model of ``config.run`` and write them under ``config.scores``.

    Args:
        config: Names the run, the split and the rows of a forward pass.
        spark: The session to use; default the active one, or one made from ``config.spark``.
        progress: Where to report.
        frame: Raw rows to score, as the query of ``config.prepare`` yields them (the label may be missing); default the
            split ``config.score.split`` of the dataset version that the model was trained on.
    Returns:
        The folder of the Parquet files. Their columns are the row id, the label if there is one, the columns that ``predict`` adds
        for the task, ``model``, ``dataset_version`` and ``split`` (null for rows of ``frame``).
    Raises:
        ConfigError: the run has no trained model, or the row id or the label has the name of a column that is added.
        DatasetError: the dataset version has changed since the model was trained, a file differs from the committed one, or a
            page does not match its checksum.
        SourceError: ``frame`` lacks a column, has one of a type that the model's features do not accept, or has rows with a null or
            repeated id; nothing was kept.
        NotFinite: the network's answer for a row is not finite; nothing was kept.
        EnvironmentProblem, StorageError: Spark cannot read the dataset.
    """
    began = time.perf_counter()
    card, store = load_card(config.run), open_store(config.scores)
    split = config.score.split if frame is None else None
    expected: Split | None = None
    finish_commit(store)
    before = scores_of(store, split)
    if before is not None and _same(before, card) and _parquet(store, before.folder):
        progress.note(f"score: this model has scored the {split} split already; reusing {store.url}/{before.folder}")
        return ScoreResult(f"{store.url}/{before.folder}", before.rows, time.perf_counter() - began, reused=True)
    session = spark_session(config.spark, app_name=f"sparkring {config.name}",
                            given=spark or (frame.sparkSession if frame is not None else None))
    with progress.stage("score") as bar, result_settings(session):
        bar.update(0, text=split or "given rows")
        if frame is None:
            manifest = trained_on(card)
            encoded = read_split(session, manifest, card.dataset_url, config.score.split)
            row_id, label, expected = manifest.row_id, manifest.label, manifest.splits[config.score.split]
            if manifest.task == "multiclass":
                encoded = _named_classes(encoded, label, manifest.preprocessing)
        else:
            row_id, label = config.prepare.id_column, config.prepare.label
            encoded = encode_raw(frame, card, row_id=row_id, keep=[label])
        keep = [row_id, label] if label in encoded.columns and card.task != "next_token" else [row_id]
        require_free(keep, [SPLIT])
        scored = predict(encoded, config.run, keep=keep, batch_rows=config.score.batch_rows)
        scored = scored.withColumn(SPLIT, sf.lit(split).cast("string"))
        dataset = open_store(card.dataset_url)
        with naming_damaged_pages(dataset, expected.files if expected else ()):
            folder, rows = _write(scored, store, row_id=row_id, split=expected)
        commit_scores(store, Scores(
            folder=folder, rows=rows, split=split, weights_sha256=card.weights_sha256, dataset_url=card.dataset_url,
            dataset_version=card.dataset_version, content_id=card.content_id, created_at=datetime.now(UTC).isoformat(timespec="seconds")))
    return ScoreResult(f"{store.url}/{folder}", rows, time.perf_counter() - began)


def trained_on(card: ModelCard) -> Manifest:
    """The manifest of the dataset version that a model was trained on.

    Raises:
        DatasetVersionNotFound: it is gone.
        DatasetError: the version has different content now.
    """
    manifest = Dataset(card.dataset_url).manifest(card.dataset_version)
    if manifest.content_id != card.content_id:
        raise DatasetError(f"version {card.dataset_version} of {card.dataset_url} holds {manifest.content_id[:16]}, but the model was "
                           f"trained on {card.content_id[:16]}; train again, or bring that dataset back.")
    return manifest


def read_split(spark: SparkSession, manifest: Manifest, dataset_url: str, split: str) -> DataFrame:
    """The encoded rows of a split: exactly the files that the manifest names, as they were committed.

    Raises:
        DatasetError: there is no such split.
        DatasetChanged: a file has a different size or footer; it is named. Training makes the same check before its first step.
        EnvironmentProblem, StorageError: Spark cannot read them.
    """
    store, files = open_store(dataset_url), split_of(manifest, dataset_url, split).files
    findings = check_footers(store, manifest, files)
    if findings:
        raise DatasetChanged(store.url, version=manifest.version, findings=list(map(str, findings)))
    return read_committed(spark, store, files)


def split_of(manifest: Manifest, dataset_url: str, split: str) -> Split:
    """A split by its name.

    Raises:
        DatasetError: there is none.
    """
    if split not in manifest.splits:
        raise DatasetError(f"version {manifest.version} of {dataset_url} has no split {split!r}; it has {', '.join(manifest.splits)}.")
    return manifest.splits[split]


def _named_classes(encoded: DataFrame, label: str, preprocessing: Preprocessing) -> DataFrame:
    """Replace the numbers of the label's classes by the source's own values, as the predictions have them."""
    value = sf.get(sf.array(*map(sf.lit, preprocessing.classes)), named(label)).cast(preprocessing.class_type)
    return encoded.select([value.alias(label) if name == label else named(name) for name in encoded.columns])


def _same(before: Scores, card: ModelCard) -> bool:
    return (before.weights_sha256, before.content_id) == (card.weights_sha256, card.content_id)


def _write(scored: DataFrame, store: Store, *, row_id: str, split: Split | None) -> tuple[str, int]:
    """Write the draft of a new folder, check that it holds each row once, and return the folder's name and row count.

    Args:
        scored: The rows to write.
        store: The store of the scores.
        row_id: The column of row ids.
        split: The manifest's split of these rows; None for rows that the caller brought.
    """
    folder, spark = uuid.uuid4().hex[:16], scored.sparkSession
    draft = draft_of(folder)
    try:
        with writing_area(store, spark) as area:
            path = spark_path(area.path(draft))
            scored.write.parquet(path)
            files = _parquet(area, draft)
            written = spark.read.schema(scored.schema).parquet(literal(path))
            _require_finite(written, row_id)
            if split is None:
                _require_distinct(written, row_id)
            else:
                _require_rows(area, files, row_id, split)
            rows = sum(_read(area, file, pq.read_metadata).num_rows for file in files)
            if area is not store:
                for file in files:
                    store.upload(Path(area.path(file)), file)
    except BaseException:
        delete_draft(store, folder)
        raise
    return folder, rows


def _parquet(store: Store, folder: str) -> list[str]:
    """The Parquet files in a folder."""
    return [f"{folder}/{name}" for name in store.names(folder) if name.endswith(".parquet")]


def _read(store: Store, file: str, reader: Callable[[pa.NativeFile], Read]) -> Read:
    with store.open_input(file) as source:
        return reader(source)


def _require_rows(store: Store, files: Sequence[str], row_id: str, split: Split) -> None:
    """Check, by the manifest's digest of row ids, that the files hold each row of the split once."""
    columns = (_read(store, file, partial(pq.read_table, columns=[row_id])) for file in files)
    found = to_hex(add(rows_digest(table[row_id].to_numpy()) for table in columns))
    if found != split.rows_digest:
        raise DatasetError(f"the scored rows have the digest {found}, the manifest says {split.rows_digest} of its {split.rows} rows; "
                           "files were exchanged: run `sparkring datasets verify`. Nothing was kept.")


def _require_finite(written: DataFrame, row_id: str) -> None:
    """Check that the network's answer for every row is finite."""
    answer = named(PROBABILITY if PROBABILITY in written.columns else NATS)
    strange = ~(sf.abs(answer) < float("inf"))
    count, example = written.agg(sf.count_if(strange), sf.min(sf.when(strange, named(row_id)))).collect()[0]
    if count:
        raise NotFinite(f"the network's answer is not finite for {count} rows, e.g. that with {row_id} {example}; see whether their "
                        "features are far beyond those that it was trained on, and whether its training went well. Nothing was kept.")


def _require_distinct(written: DataFrame, row_id: str) -> None:
    """Check that ids are unique and not null."""
    ids = written.groupBy(named(row_id).alias("id")).agg(sf.count(sf.lit(1)).alias("rows"))
    known = sf.when(sf.col("id").isNotNull(), sf.col("rows"))
    found = ids.agg(sf.sum(sf.when(sf.col("id").isNull(), sf.col("rows"))).alias("nameless"), sf.max(known).alias("most"),
                    sf.max_by("id", known).alias("worst")).collect()[0]
    if found["nameless"]:
        raise SourceError(f"{row_id} is null in {found['nameless']} of the rows to score; each needs one. Nothing was kept.")
    if (found["most"] or 0) > 1:
        raise SourceError(f"{row_id} is not unique among the rows to score: {found['worst']} stands for {found['most']} rows, and "
                          "nobody could tell their scores apart; pass each row once. Nothing was kept.")
