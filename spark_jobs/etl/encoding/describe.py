"""From fitted features to the columns of the files and the tensors of a batch. Pure: no session, no data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sparkring.conf.schema import PrepareConfig, RawConfig, Task, TimeSplit
from sparkring.models.inputs import CATEGORICAL, IMAGE, NUMERIC, TOKENS
from sparkring.pipelines.data.dataset.preprocessing import ImageFeature, Preprocessing, TokensFeature
from sparkring.pipelines.data.dataset.row_schema import (
    LABEL,
    ROW_ID,
    SPLIT_TIME,
    WEIGHT,
    Augment,
    DataField,
    Dtype,
    ImageSpec,
    MaskSpec,
    TensorSpec,
)
from sparkring.spark_jobs.etl.encoding.arrays import describe_raw

_LABELS: dict[Task, tuple[Dtype, Dtype]] = {"binary": ("int8", "float32"), "multiclass": ("int32", "int64"),
                                            "regression": ("float64", "float64")}
"""Type of a label in the files and in a batch."""


def describe(config: PrepareConfig, preprocessing: Preprocessing) -> tuple[tuple[DataField, ...], tuple[TensorSpec, ...]]:
    """The columns of the files (the row id first, the label second), and the tensors of a batch."""
    row_id = DataField(name=config.id_column, dtype="int64")
    row_id_tensor = TensorSpec(name=ROW_ID, dtype="int64", fields=(config.id_column,), stacked=False)
    if preprocessing.tokens is not None:
        field, of_tokens = describe_tokens(preprocessing.tokens)
        return (row_id, field), (*of_tokens, row_id_tensor)
    stored, used = _LABELS[config.task]
    numeric, unscaled = preprocessing.numeric_columns, {feature.column for feature in preprocessing.numeric} if config.folds else set()
    categorical = tuple(feature.column for feature in preprocessing.with_ids)
    fields = [row_id, DataField(name=config.label, dtype=stored),
              *(DataField(name=name, dtype="float64", nullable=True) if name in unscaled else DataField(name=name, dtype="float32")
                for name in numeric), *(DataField(name=name, dtype="int32") for name in categorical)]
    tensors = [TensorSpec(name=NUMERIC, dtype="float32", fields=numeric),
               TensorSpec(name=CATEGORICAL, dtype="int64", fields=categorical)] if numeric or categorical else []
    if preprocessing.image is not None:
        image = config.features.image
        augment = Augment.model_validate(image.augment.model_dump()) if image and image.augment else None
        field, tensor = describe_image(preprocessing.image, augment)
        fields.append(field)
        tensors.append(tensor)
    for raw in config.features.raw:
        fields.append(describe_raw(raw))
        tensors.append(_raw_tensor(raw))
    if config.weight is not None:
        fields.append(DataField(name=config.weight, dtype="float64"))
        tensors.append(TensorSpec(name=WEIGHT, dtype="float64", fields=(config.weight,), stacked=False))
    if isinstance(config.split, TimeSplit) and config.split.rolls:
        fields.append(DataField(name=SPLIT_TIME, dtype="int64"))
    label = TensorSpec(name=LABEL, dtype=used, fields=(config.label,), stacked=False, standard=preprocessing.label)
    return tuple(fields), (*tensors, label, row_id_tensor)


def made_tensors(config: PrepareConfig) -> set[str]:
    """Names of a batch's tensors, without those of raw columns, which are named as their columns."""
    features = config.features
    of_table = features.numbers or features.categorical or features.derived
    return {LABEL, ROW_ID, *((NUMERIC, CATEGORICAL) if of_table else ()), *((IMAGE,) if features.image else ()),
            *((WEIGHT,) if config.weight is not None else ())}


def _raw_tensor(raw: RawConfig) -> TensorSpec:
    shape = tuple(raw.pad_to if size is None else size for size in raw.shape)
    return TensorSpec(name=raw.column, dtype=raw.dtype, fields=(raw.column,), stacked=False, pad=raw.pad,
                      shape=tuple(size for size in shape if size is not None))


def row_bytes(tensors: Sequence[TensorSpec]) -> int:
    """Bytes of a decoded row in memory; an image counts a byte for each channel of a pixel."""
    return sum((1 if tensor.image else np.dtype(tensor.dtype).itemsize) * math.prod(tensor.row_shape) for tensor in tensors)


def describe_image(feature: ImageFeature, augment: Augment | None = None) -> tuple[DataField, TensorSpec]:
    """The column and the tensor of an image."""
    shape = (feature.height, feature.width) if feature.channels == 1 else (feature.height, feature.width, feature.channels)
    return (DataField(name=feature.column, dtype="uint8", shape=shape, codec=feature.codec),
            TensorSpec(name=IMAGE, dtype="float32", fields=(feature.column,), stacked=False,
                       shape=(feature.channels, feature.height, feature.width),
                       image=ImageSpec(mean=feature.mean, std=feature.std, augment=augment)))


def describe_tokens(feature: TokensFeature) -> tuple[DataField, tuple[TensorSpec, ...]]:
    """The column of a row of tokens, and its tensors: the tokens and, if they are masked, those to be found."""
    field = DataField(name=TOKENS, dtype="uint16" if feature.pad_id < 2**16 else "int32", shape=(feature.length,), codec="ndarray")
    tensor = TensorSpec(name=TOKENS, dtype="int64", fields=(TOKENS,), stacked=False, shape=(feature.length,))
    if feature.mask is None:
        return field, (tensor,)
    seen, found = (MaskSpec(mask_id=feature.mask.mask_id, pad_id=feature.pad_id, targets=targets) for targets in (False, True))
    return field, (tensor.model_copy(update={"mask": seen}), tensor.model_copy(update={"name": LABEL, "mask": found}))
