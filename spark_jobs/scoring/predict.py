"""Add a trained network's predictions to a Spark frame of raw rows; ``columns.py`` lists the columns of each task.

Only the columns that the network reads go to Spark's Python workers, as Arrow batches, and only answers come back (``network.py``). All
other columns stay in Spark as they are: their types, their order, a stream's watermark. Rows of a dataset version: ``predict_split.py``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import ArrayType, DataType, DoubleType, IntegerType, StructField, StructType

from sparkring.conf.schema import TEXT_TASKS, Task
from sparkring.errors import EnvironmentProblem
from sparkring.models.inputs import TOKENS
from sparkring.models.networks import REGISTRY
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.training.job.model_files import ModelCard, load_card, load_weights
from sparkring.spark_jobs.etl.columns.expressions import TEMPORAL_TYPES, named
from sparkring.spark_jobs.etl.encoding.table_features import computed_ids, numbers_of, text_of
from sparkring.spark_jobs.scoring.columns import (
    DECIDED_AT,
    NATS,
    PREDICTED,
    PREDICTION,
    PROBABILITIES,
    PROBABILITY,
    RIGHT,
    TOP_K,
    predicted_columns,
    require_free_in_rows,
)
from sparkring.spark_jobs.scoring.network import Answers, Shipped, ShippedWeights, answer
from sparkring.spark_jobs.scoring.raw_rows import check_raw, source_columns
from sparkring.spark_jobs.spark.session import result_settings
from sparkring.spark_jobs.spark.versions.supported import is_connect


def _struct(types: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


ANSWERS: dict[Task, StructType] = {
    "binary": _struct({PROBABILITY: DoubleType()}),
    "multiclass": _struct({PREDICTION: IntegerType(), PROBABILITY: DoubleType(), PROBABILITIES: ArrayType(DoubleType())}),
    "regression": _struct({PREDICTION: DoubleType()}),
    **dict.fromkeys(TEXT_TASKS, _struct({NATS: DoubleType(), PREDICTED: IntegerType(), RIGHT: IntegerType()}))}
"""What a worker answers; a class by its number."""
ANSWER = "__sparkring_answer"
"""The column of these, before the columns of the task are made of it."""


@dataclass(frozen=True)
class Model:
    """A trained network, read and checked, that torch runs."""

    card: ModelCard
    weights: bytes
    """As safetensors."""

    @classmethod
    def of(cls, run_url: str) -> Model:
        """Read the model of a run.

        Raises:
            ConfigError: the run has no trained model.
            CheckpointDamaged: card or weights are not what was committed.
        """
        card = load_card(run_url)
        return cls(card, load_weights(run_url, card))

    def raw_inputs(self) -> list[Column]:
        """What the workers get of a raw row."""
        return raw_inputs(self.card)

    def shipped(self, *, raw: bool, batch_rows: int) -> Shipped:
        """The network on its way to the workers, for raw rows or those of a dataset version."""
        return ShippedWeights(card_json=self.card.model_dump_json(), key=self.key(raw=raw), raw=raw, batch_rows=batch_rows,
                              weights=self.weights)

    def key(self, *, raw: bool) -> str:
        """The name under which the workers keep it."""
        own = uuid.uuid4().hex if REGISTRY.builds() else ""  # an own network may change under the same weights
        return f"{type(self).__name__}-{self.card.weights_sha256}{own}-{raw}"


def predict_with(frame: DataFrame, model: Model, *, batch_rows: int, top_k: int | None = None) -> DataFrame:
    """``sparkring.predict`` with a model that was read already."""
    _require_utc(frame, model.card)
    with result_settings(frame.sparkSession):  # Spark keeps them in the expressions that are made here
        return predict_raw(frame, model, top_k=top_k, batch_rows=batch_rows)


def _require_utc(frame: DataFrame, card: ModelCard) -> None:
    """Check, over Spark Connect, that moments are read in UTC: its plans follow the settings that hold when they run, not those here."""
    spark, types = frame.sparkSession, {field.name: field.dataType for field in frame.schema}
    zone = spark.conf.get("spark.sql.session.timeZone") if is_connect(spark) else "UTC"
    if zone != "UTC" and any(isinstance(types.get(name), TEMPORAL_TYPES) for name in source_columns(card)):
        raise EnvironmentProblem(f"the session's time zone is {zone}, and features made of dates and timestamps are read in UTC; over "
                                 "Spark Connect set spark.conf.set('spark.sql.session.timeZone', 'UTC') while the predictions are used.")


def predict_raw(frame: DataFrame, model: Model, *, top_k: int | None, batch_rows: int) -> DataFrame:
    """The same inside ``result_settings``."""
    check_raw(frame, model.card)
    require_free_in_rows(frame.columns, predicted_columns(model.card.task, top_k))
    ask = _udf(REGISTRY.carrying(partial(answer, shipped=model.shipped(raw=True, batch_rows=batch_rows))), ANSWERS[model.card.task])
    answered = frame.select("*", ask(*model.raw_inputs()).alias(ANSWER))
    return answered.select("*", *predictions(model.card, top_k)).drop(ANSWER)


def feature_columns(card: ModelCard) -> list[str]:
    """The dataset columns that a model reads."""
    features = card.preprocessing
    if card.model.kind == "text":
        assert features.tokens is not None
        return [TOKENS, *([features.tokens.mask.row_id] if features.tokens.mask else [])]
    if card.model.kind == "image" and features.image:
        return [features.image.column]
    return [*features.numeric_columns, *(feature.column for feature in features.with_ids)]


def raw_inputs(card: ModelCard) -> list[Column]:
    """The same of raw rows: numbers are scaled here, texts are looked up by the workers."""
    features: Preprocessing = card.preprocessing
    if card.model.kind != "tabular":
        return [named(name) for name in feature_columns(card)]
    # As bytes: a text of Spark may hold bytes that are no characters, which pandas would refuse.
    return [*numbers_of(features), *(text_of(feature).cast("binary") for feature in features.categorical), *computed_ids(features)]


def predictions(card: ModelCard, top_k: int | None) -> list[Column]:
    """The columns that the model's task adds, made of ``ANSWER``.

    Args:
        card: The model's.
        top_k: The number of likeliest classes to add; None for none.
    """
    added = {name: sf.col(f"{ANSWER}.{name}") for name in predicted_columns(card.task) if name != PREDICTION} | _decided(card)
    columns = [added[name].alias(name) for name in predicted_columns(card.task)]
    return columns if top_k is None else [*columns, _likeliest(card, top_k).alias(TOP_K)]


def _udf(run: Callable[..., Answers], answers: StructType) -> Callable[..., Column]:
    def network(*columns: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({name: list(values) if values.ndim > 1 else values for name, values in run(columns).items()})

    # Else a filter on the answer would move below it, and ask the network twice.
    asking: Callable[..., Column] = pandas_udf(network, answers).asNondeterministic()  # type: ignore[call-overload]
    return asking


def _decided(card: ModelCard) -> dict[str, Column]:
    """The column of the predicted label, where the task has one; null where the answer is not a number."""
    probability = sf.col(f"{ANSWER}.{PROBABILITY}")
    if card.task == "binary":
        return {PREDICTION: (probability >= DECIDED_AT).cast("int")}
    if card.task == "multiclass":
        return {PREDICTION: sf.when(probability.isNotNull(), class_of(sf.col(f"{ANSWER}.{PREDICTION}"), card.preprocessing))}
    return {PREDICTION: sf.col(f"{ANSWER}.{PREDICTION}")}


def class_of(number: Column, preprocessing: Preprocessing) -> Column:
    """The class of a number, in the type that the label has in the source."""
    return sf.get(sf.array(*map(sf.lit, preprocessing.classes)), number).cast(preprocessing.class_type)


def _likeliest(card: ModelCard, top_k: int) -> Column:
    """The likeliest classes; of equal ones the first."""
    each = sf.transform(f"{ANSWER}.{PROBABILITIES}", lambda probability, number: sf.struct(
        (-probability).alias("order"), number.alias("number"), probability.alias(PROBABILITY)))
    return sf.transform(sf.slice(sf.array_sort(each), 1, top_k), lambda one: sf.struct(
        class_of(one["number"], card.preprocessing).alias("class"), one[PROBABILITY].alias(PROBABILITY)))
