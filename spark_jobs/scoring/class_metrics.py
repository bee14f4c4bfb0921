"""Exact metrics of a network that predicts classes or tokens, and of the base rate, which needs no network.

Spark sums over all rows of the split; ``evaluation/totals.py`` divides once. The base rate predicts every row by the shares
of the train split: of its classes, or of its tokens (each counted once more, so that none is impossible).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.errors import NotFinite
from sparkring.models.inputs import TOKENS
from sparkring.pipelines.data.dataset.preprocessing import TokensFeature
from sparkring.pipelines.data.dataset.row_schema import LABEL, ROW_ID
from sparkring.pipelines.data.loading.assemble import Assembler
from sparkring.pipelines.training.evaluation.totals import Metrics, bits_per_byte, class_metrics, mean_metrics, token_metrics
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.encoding.describe import describe_tokens
from sparkring.spark_jobs.scoring.columns import NATS, PREDICTED, PREDICTION, PROBABILITIES, RIGHT

Counts = NDArray[np.int64]


def evaluate_classes(predicted: DataFrame, *, label: str, classes: Sequence[str]) -> Metrics:
    """Evaluate a network that predicts one of several classes.

    Args:
        predicted: The result of ``predict``, with the label's number kept.
        label: The label's column.
        classes: The classes' names by their number.
    Returns:
        ``rows``, ``loss`` (nats a row), ``accuracy`` and ``confusion`` (rows of each class, by the class that was predicted).
    Raises:
        NotFinite: the network's answer for a row is not finite.
    """
    number = named(label).cast("int")
    nats = -sf.ln(sf.greatest(sf.get(sf.col(PROBABILITIES), number), sf.lit(np.finfo(np.float64).tiny.item())))
    cells = predicted.groupBy(number.alias("label"), PREDICTION).agg(
        sf.count(sf.lit(1)).alias("rows"), sf.sum(nats).alias("nats")).collect()
    _require_finite(sum(cell["rows"] for cell in cells if cell[PREDICTION] is None), rows=sum(cell["rows"] for cell in cells))
    place = {name: position for position, name in enumerate(classes)}
    confusion: Counts = np.zeros((len(classes), len(classes)), np.int64)
    for cell in cells:
        confusion[cell["label"], place[str(cell[PREDICTION])]] = cell["rows"]
    return class_metrics(nats=math.fsum(cell["nats"] for cell in cells), confusion=confusion.tolist())


def evaluate_tokens(predicted: DataFrame, *, tokens: TokensFeature, split: str) -> Metrics:
    """Evaluate a network that predicts the next token, or the masked ones.

    Args:
        predicted: The result of ``predict`` for the test rows.
        tokens: The fitted tokens.
        split: Name of the test rows' split.
    Returns:
        ``rows`` (predicted tokens), ``loss`` (nats a token), ``accuracy`` and, of next tokens, ``bits_per_byte``.
    Raises:
        NotFinite: the network's answer for a row is not finite.
    """
    found = predicted.agg(sf.sum(NATS).alias("nats"), sf.sum(PREDICTED).alias("rows"), sf.sum(RIGHT).alias("right"),
                          sf.count(sf.lit(1)).alias("texts"), sf.count(NATS).alias("finite")).collect()[0]
    _require_finite(found["texts"] - found["finite"], rows=found["texts"])
    return token_metrics(nats=found["nats"], hits=found["right"], count=found["rows"], tokens=tokens, split=split)


def class_base_rate(train: DataFrame, network: Metrics, *, label: str) -> Metrics:
    """``rows``, ``loss`` and ``accuracy`` of the train split's shares of the classes.

    Args:
        train: Rows of the train split, with the label's number.
        network: The network's metrics on the test rows, whose ``confusion`` counts their classes.
        label: The label's column.
    """
    test = np.array(network["confusion"], np.int64).sum(axis=1)
    counts = np.zeros(len(test), np.int64)
    for row in train.groupBy(named(label).cast("int").alias("label")).count().collect():
        counts[row["label"]] = row["count"]
    return _base_rate(counts, test)


def token_base_rate(train: DataFrame, test: DataFrame, *, tokens: TokensFeature, split: str) -> Metrics:
    """The metrics of ``evaluate_tokens`` if each test token were predicted by its share of the train split."""
    found = _base_rate(_count_targets(train, tokens) + 1, _count_targets(test, tokens))
    return found if tokens.mask else {**found, "bits_per_byte": bits_per_byte(found["loss"], tokens, split)}


def _require_finite(lost: int, *, rows: int) -> None:
    if lost:
        raise NotFinite(f"the network's answer is not finite for {lost} of {rows} rows: it diverged; lower train.optimizer.lr.")


def _base_rate(train: Counts, test: Counts) -> Metrics:
    """Metrics of predicting rows with these test counts by the train shares."""
    seen = test > 0
    logs = np.log(train[seen] / train.sum())
    return mean_metrics(nats=-float((test[seen] * logs).sum()), hits=int(test[train.argmax()]), count=int(test.sum()))


def _count_targets(frame: DataFrame, tokens: TokensFeature) -> Counts:
    """Count, for each token, how often it is the token to predict. Of masked tokens: with the masks of held-out rows, on train too."""
    read = frame.select(TOKENS, *([named(tokens.mask.row_id)] if tokens.mask else []))
    counted = read.mapInArrow(partial(_count_batches, tokens=tokens), "token int, times bigint")
    counts = np.zeros(tokens.vocabulary, np.int64)
    for row in counted.groupBy("token").agg(sf.sum("times").alias("times")).collect():
        counts[row["token"]] = row["times"]
    return counts


def _count_batches(batches: Iterable[pa.RecordBatch], *, tokens: TokensFeature) -> Iterator[pa.RecordBatch]:
    field, tensors = describe_tokens(tokens)
    assembler = Assembler(specs=tensors, fields={field.name: field}, seed=0, augmented=False)
    counts = np.zeros(tokens.vocabulary, np.int64)
    for batch in batches:
        if batch.num_rows:
            cells = batch.column(0).to_pylist()
            ids = {ROW_ID: batch.column(1).to_numpy()} if tokens.mask else {}
            made = assembler.join([{tensor.name: cells for tensor in tensors} | ids], epoch=0)
            targets = made[LABEL] if tokens.mask else made[TOKENS][:, 1:]
            counts += np.bincount(targets.numpy().ravel(), minlength=tokens.vocabulary)
    counts[tokens.pad_id] = 0
    there = np.flatnonzero(counts)
    yield pa.RecordBatch.from_pydict({"token": pa.array(there.astype(np.int32)), "times": pa.array(counts[there])})
