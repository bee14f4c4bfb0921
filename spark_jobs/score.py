"""Batch predictions on Spark: rows of a dataset version, or new raw rows, through the trained network, into Parquet.

    sparkring score local/flights

The network travels to the executors inside the function that they run (its card as JSON, its weights as safetensors), so
they need neither the run folder nor anything unpickled from it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from sparkring.conf.schema import Config
from sparkring.errors import DatasetError, SourceError, nearest
from sparkring.pipelines.data.manifest import Dataset, Manifest
from sparkring.pipelines.data.store import Store, open_store
from sparkring.pipelines.training.model_files import ModelCard, load_card, load_weights, model_from_bytes
from sparkring.spark_jobs.etl.columns import named
from sparkring.spark_jobs.etl.encode import encode
from sparkring.spark_jobs.progress import SILENT, Progress
from sparkring.spark_jobs.scores import Scores, commit_scores, latest_scores
from sparkring.spark_jobs.session import result_settings, spark_path, spark_session

PROBABILITY, MODEL, VERSION = "probability", "model", "dataset_version"
"""Columns that scoring adds: of label 1; the first 16 digits of the weights' SHA-256; the dataset version it was trained on."""


@dataclass(frozen=True)
class ScoreResult:
    """Scored rows."""

    url: str
    """Folder of the Parquet files."""
    rows: int
    seconds: float
    reused: bool = False
    """These scores were there already; nothing was computed."""


def score(config: Config, *, spark: SparkSession | None = None, progress: Progress = SILENT, frame: DataFrame | None = None) -> ScoreResult:
    """Score rows with the trained model of ``config.run`` and write them under ``config.scores``.

    Args:
        config: Names the run, the split and the rows of a forward pass.
        spark: The session to use; default the active one, or one made from ``config.spark``.
        progress: Where to report.
        frame: Raw rows to score, as the query of ``config.prepare`` yields them (the label may be missing); default the
            split ``config.score.split`` of the dataset version that the model was trained on.
    Returns:
        Where the Parquet is: row id, ``probability``, the label if there is one, ``model`` and ``dataset_version``.
    Raises:
        ConfigError: the run has no trained model.
        DatasetError: the dataset version is not what the model was trained on any more.
        SourceError: ``frame`` lacks a column.
    """
    began = time.perf_counter()
    card, store = load_card(config.run), open_store(config.scores)
    split = config.score.split if frame is None else None
    before = latest_scores(store)
    if before is not None and split is not None and _same(before, card, split) and Path(store.path(before.folder)).is_dir():
        progress.note(f"score: this model has scored the {split} split already; reusing {store.url}/{before.folder}")
        return ScoreResult(f"{store.url}/{before.folder}", before.rows, time.perf_counter() - began, reused=True)
    session = spark or (frame.sparkSession if frame is not None else spark_session(config.spark, app_name=f"sparkring {config.name}"))
    with progress.stage("score") as bar, result_settings(session):
        bar.update(0, text=split or "given rows")
        if frame is None:
            manifest = trained_on(card)
            encoded = read_split(session, manifest, card.dataset_url, config.score.split)
            row_id, label = manifest.row_id, manifest.label
        else:
            row_id, label = config.prepare.row_id, config.prepare.label
            encoded = encode_raw(frame, card, row_id=row_id)
        keep = [row_id, label] if label in encoded.columns else [row_id]
        folder, rows = _write(predict(encoded, config.run, keep=keep, batch_rows=config.score.batch_rows), store)
        commit_scores(store, Scores(
            folder=folder, rows=rows, split=split, weights_sha256=card.weights_sha256, dataset_url=card.dataset_url,
            dataset_version=card.dataset_version, content_id=card.content_id, created_at=datetime.now(UTC).isoformat(timespec="seconds")))
    return ScoreResult(f"{store.url}/{folder}", rows, time.perf_counter() - began)


def predict(encoded: DataFrame, run_url: str, *, keep: list[str], batch_rows: int) -> DataFrame:
    """Add the trained network's probability to encoded rows.

    Args:
        encoded: The features as ``encode`` or a dataset version gives them, and the columns to keep.
        run_url: The run whose model predicts.
        keep: Columns to pass through.
        batch_rows: Rows of a forward pass at most.
    Returns:
        ``keep``, then ``probability`` (double), ``model`` and ``dataset_version``; nothing was computed yet.
    """
    card = load_card(run_url)
    features = [feature.column for feature in (*card.preprocessing.numeric, *card.preprocessing.categorical)]
    kept = encoded.select([named(name) for name in keep]).schema.fields
    schema = StructType([*kept, StructField(PROBABILITY, DoubleType(), nullable=False), StructField(MODEL, StringType(), nullable=False),
                         StructField(VERSION, LongType(), nullable=False)])
    run = partial(_predict_batches, card_json=card.model_dump_json(), weights=load_weights(run_url, card), keep=keep, batch_rows=batch_rows)
    wanted = dict.fromkeys([*keep, *features])
    return encoded.select([named(name) for name in wanted]).mapInArrow(run, schema)


def trained_on(card: ModelCard) -> Manifest:
    """The manifest of the dataset version that a model was trained on.

    Raises:
        DatasetVersionNotFound: it is gone.
        DatasetError: that number stands for another content now.
    """
    manifest = Dataset(card.dataset_url).manifest(card.dataset_version)
    if manifest.content_id != card.content_id:
        raise DatasetError(f"version {card.dataset_version} of {card.dataset_url} holds {manifest.content_id[:16]}, but the model was "
                           f"trained on {card.content_id[:16]}; train again, or bring that dataset back.")
    return manifest


def read_split(spark: SparkSession, manifest: Manifest, dataset_url: str, split: str) -> DataFrame:
    """The encoded rows of a split: exactly the files that the manifest names."""
    store = open_store(dataset_url)
    return spark.read.parquet(*(spark_path(store.path(file.path)) for file in manifest.splits[split].files))


def encode_raw(frame: DataFrame, card: ModelCard, *, row_id: str) -> DataFrame:
    """Encode raw rows as the model's training rows were.

    Raises:
        SourceError: a feature or the row id is missing.
    """
    features = [feature.column for feature in (*card.preprocessing.numeric, *card.preprocessing.categorical)]
    for name in (row_id, *features):
        if name not in frame.columns:
            raise SourceError(f"the rows to score have no column {name}{nearest(name, frame.columns)}; the model {card.name} needs "
                              f"{row_id} and its {len(features)} features, as the query of its config yields them.")
    return encode(frame, card.preprocessing)


def _predict_batches(batches: Iterator[pa.RecordBatch], *, card_json: str, weights: bytes, keep: list[str],
                     batch_rows: int) -> Iterator[pa.RecordBatch]:
    """What a task runs: build the network once, then predict batch after batch on one thread (the task has one core)."""
    import torch

    torch.set_num_threads(1)
    card = ModelCard.model_validate_json(card_json)
    model = model_from_bytes(card, weights)
    numeric = [feature.column for feature in card.preprocessing.numeric]
    categorical = [feature.column for feature in card.preprocessing.categorical]
    dtype = next(model.parameters()).dtype
    for batch in batches:
        for start in range(0, batch.num_rows, batch_rows):
            part = batch.slice(start, batch_rows)
            with torch.inference_mode():
                logits = model(numeric=torch.from_numpy(_matrix(part, numeric, np.float32)).to(dtype),
                               categorical=torch.from_numpy(_matrix(part, categorical, np.int64)))
                # float64: a float32 sigmoid is exactly 1 from logit 17 on, and then the logarithm of its rest is lost
                probability = torch.sigmoid(logits.double()).numpy()
            columns = {name: part.column(name) for name in keep}
            columns[PROBABILITY] = pa.array(probability)
            columns[MODEL] = pa.repeat(card.weights_sha256[:16], part.num_rows)
            columns[VERSION] = pa.repeat(pa.scalar(card.dataset_version, pa.int64()), part.num_rows)
            yield pa.RecordBatch.from_pydict(columns)


def _matrix(batch: pa.RecordBatch, columns: list[str], dtype: type[np.generic]) -> NDArray[np.generic]:
    """(rows, columns) from columns of a batch; (rows, 0) from none."""
    matrix: NDArray[np.generic] = np.empty((batch.num_rows, len(columns)), dtype)
    for place, name in enumerate(columns):
        matrix[:, place] = batch.column(name).to_numpy(zero_copy_only=False)
    return matrix


def _same(before: Scores, card: ModelCard, split: str) -> bool:
    return (before.weights_sha256, before.content_id, before.split) == (card.weights_sha256, card.content_id, split)


def _write(scored: DataFrame, store: Store) -> tuple[str, int]:
    """Write into a fresh folder; returns its name and the rows counted in the written footers."""
    folder = uuid.uuid4().hex[:16]
    path = Path(store.path(folder))
    try:
        scored.write.parquet(spark_path(str(path)))
    except BaseException:
        store.delete(folder)
        raise
    return folder, sum(pq.read_metadata(file).num_rows for file in path.glob("*.parquet"))
