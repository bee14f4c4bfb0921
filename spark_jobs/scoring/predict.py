"""Run a trained network over the rows of a Spark frame. Each task adds its own columns:

    binary       probability        double: of label 1
    multiclass   prediction         the likeliest class, of the type that the label has in the source
                 probability        double: of that class
                 probabilities      array<double>: of each class, in the order of the model's classes
    regression   prediction         double: in the label's own units
    next_token   nats               double: cross entropy, summed over the row's predicted tokens
                 tokens_predicted   int: number of these tokens
                 tokens_right       int: number of these for which the likeliest token was right

The function that executors run carries the network (its card as JSON, its weights as safetensors): they neither read the run
folder nor unpickle anything from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from sparkring.conf.schema import Task
from sparkring.models.inputs import CATEGORICAL, NUMERIC, TOKENS
from sparkring.models.networks import REGISTRY
from sparkring.pipelines.data.dataset.preprocessing import ClassType
from sparkring.pipelines.training.job.model_files import ModelCard, load_card, load_weights, model_from_bytes
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.encoding.describe import describe_image, describe_tokens
from sparkring.spark_jobs.scoring.columns import (
    MODEL,
    NATS,
    PREDICTED,
    PREDICTION,
    PROBABILITIES,
    PROBABILITY,
    RIGHT,
    VERSION,
    predicted_columns,
    require_free,
)

if TYPE_CHECKING:
    from torch import Tensor

_COLUMNS: dict[Task, tuple[StructField, ...]] = {
    "binary": (StructField(PROBABILITY, DoubleType(), nullable=False),),
    "multiclass": (StructField(PROBABILITY, DoubleType(), nullable=False),
                   StructField(PROBABILITIES, ArrayType(DoubleType(), containsNull=False), nullable=False)),
    "regression": (StructField(PREDICTION, DoubleType(), nullable=False),),
    "next_token": (StructField(NATS, DoubleType(), nullable=False), StructField(PREDICTED, IntegerType(), nullable=False),
                   StructField(RIGHT, IntegerType(), nullable=False))}


_CLASSES: dict[ClassType, tuple[DataType, pa.DataType]] = {
    "string": (StringType(), pa.string()), "tinyint": (ByteType(), pa.int8()), "smallint": (ShortType(), pa.int16()),
    "int": (IntegerType(), pa.int32()), "bigint": (LongType(), pa.int64())}
"""Spark's and Arrow's type of a predicted class."""


def predict(encoded: DataFrame, run_url: str, *, keep: list[str], batch_rows: int) -> DataFrame:
    """Add the trained network's predictions to encoded rows.

    Args:
        encoded: The features as ``encode`` or a dataset version gives them, and the columns to keep.
        run_url: The run whose model predicts.
        keep: Columns to pass through.
        batch_rows: The most rows of a forward pass.
    Returns:
        ``keep``, then the task's columns, ``model`` and ``dataset_version``. Nothing is computed yet.
    Raises:
        ConfigError: a column of ``keep`` has the name of one that is added.
    """
    card = load_card(run_url)
    require_free(keep, predicted_columns(card.task))
    kept = encoded.select([named(name) for name in keep]).schema.fields
    likeliest = [StructField(PREDICTION, _CLASSES[card.preprocessing.class_type][0], nullable=False)] if card.task == "multiclass" else []
    schema = StructType([*kept, *likeliest, *_COLUMNS[card.task], StructField(MODEL, StringType(), nullable=False),
                         StructField(VERSION, LongType(), nullable=False)])
    run = REGISTRY.carrying(partial(_predict_batches, card_json=card.model_dump_json(), weights=load_weights(run_url, card), keep=keep,
                           batch_rows=batch_rows))
    wanted = dict.fromkeys([*keep, *feature_columns(card)])
    return encoded.select([named(name) for name in wanted]).mapInArrow(run, schema)


def feature_columns(card: ModelCard) -> list[str]:
    """The dataset columns that a model reads."""
    features = card.preprocessing
    if card.model.kind == "text":
        return [TOKENS]
    if card.model.kind == "image" and features.image:
        return [features.image.column]
    return [*features.numeric_columns, *(feature.column for feature in features.with_ids)]


def source_columns(card: ModelCard) -> list[str]:
    """The columns of raw rows that a model's features are made of."""
    if card.model.kind != "tabular":
        return feature_columns(card)
    features = card.preprocessing
    return list(dict.fromkeys(feature.source for feature in (*features.numeric, *features.with_ids)))


def _predict_batches(batches: Iterator[pa.RecordBatch], *, card_json: str, weights: bytes, keep: list[str],
                     batch_rows: int) -> Iterator[pa.RecordBatch]:
    """In a task: build the network once, then predict each batch on one thread (the task has one core)."""
    import torch

    torch.set_num_threads(1)
    card = ModelCard.model_validate_json(card_json)
    model = model_from_bytes(card, weights)
    dtype = next(model.parameters()).dtype
    for batch in batches:
        for start in range(0, batch.num_rows, batch_rows):
            part = batch.slice(start, batch_rows)
            columns = {name: part.column(name) for name in keep}
            with torch.inference_mode():
                inputs = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in _inputs(part, card).items()}
                columns |= _predictions(model(**inputs), inputs, card)
            columns[MODEL] = pa.repeat(card.weights_sha256[:16], part.num_rows)
            columns[VERSION] = pa.repeat(pa.scalar(card.dataset_version, pa.int64()), part.num_rows)
            yield pa.RecordBatch.from_pydict(columns)


def _inputs(batch: pa.RecordBatch, card: ModelCard) -> dict[str, Tensor]:
    """The network's arguments."""
    import torch

    from sparkring.pipelines.data.loading.assemble import Assembler

    features = card.preprocessing
    if card.model.kind == "tabular":
        categorical = [feature.column for feature in features.with_ids]
        return {NUMERIC: torch.from_numpy(_matrix(batch, features.numeric_columns, np.float32)),
                CATEGORICAL: torch.from_numpy(_matrix(batch, categorical, np.int64))}
    if card.model.kind == "image":
        assert features.image is not None
        field, tensor = describe_image(features.image)
    else:
        assert features.tokens is not None
        field, tensor = describe_tokens(features.tokens)
    assembler = Assembler(specs=(tensor,), fields={field.name: field}, seed=0, augmented=False)
    return assembler.join([{tensor.name: batch.column(field.name).to_pylist()}], epoch=0)


def _predictions(logits: Tensor, inputs: dict[str, Tensor], card: ModelCard) -> dict[str, pa.Array]:
    """The task's columns of one batch.

    Computed in float64: a float32 sigmoid is exactly 1 from logit 17 on, which loses the logarithm of 1 minus the probability.
    """
    import torch

    if card.task == "binary":
        return {PROBABILITY: pa.array(torch.sigmoid(logits.double()).numpy())}
    if card.task == "multiclass":
        probabilities = torch.softmax(logits.double(), dim=1)
        best, number = probabilities.max(dim=1)
        offsets = np.arange(0, probabilities.numel() + 1, probabilities.shape[1], dtype=np.int32)
        classes = pa.array(card.preprocessing.classes, pa.string()).cast(_CLASSES[card.preprocessing.class_type][1])
        return {PREDICTION: classes.take(pa.array(number.numpy())),
                PROBABILITY: pa.array(best.numpy()), PROBABILITIES: pa.ListArray.from_arrays(offsets, probabilities.flatten().numpy())}
    if card.task == "regression":
        assert card.preprocessing.label is not None
        return {PREDICTION: pa.array((logits.double() * card.preprocessing.label.std + card.preprocessing.label.mean).numpy())}
    from sparkring.models.losses import next_token_hits, next_token_nats

    assert card.preprocessing.tokens is not None
    tokens = inputs[TOKENS]
    nats, counted = next_token_nats(logits, tokens, pad_id=card.preprocessing.tokens.pad_id)
    right = next_token_hits(logits, tokens, counted)
    return {NATS: pa.array(nats.sum(dim=1, dtype=torch.float64).numpy()),
            PREDICTED: pa.array(counted.sum(dim=1, dtype=torch.int32).numpy()),
            RIGHT: pa.array(right.sum(dim=1, dtype=torch.int32).numpy())}


def _matrix(batch: pa.RecordBatch, columns: Sequence[str], dtype: type[np.generic]) -> NDArray[np.generic]:
    """(rows, columns) from columns of a batch; (rows, 0) from none."""
    matrix: NDArray[np.generic] = np.empty((batch.num_rows, len(columns)), dtype)
    for place, name in enumerate(columns):
        matrix[:, place] = batch.column(name).to_numpy(zero_copy_only=False)
    return matrix
