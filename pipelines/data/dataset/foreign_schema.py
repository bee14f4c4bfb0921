"""How a dataset that somebody else wrote is read: its columns, the tensors made of them, and what its label asks for.

Pure: schemas and values in, parts of a manifest out. Numbers become one stacked tensor as they are, arrays and images of
fixed size a tensor each; a ragged array is described but made into no tensor, since nothing says how to pad it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.manifest import Task
from sparkring.pipelines.data.dataset.preprocessing import ImageFeature, NumericFeature, Preprocessing
from sparkring.pipelines.data.dataset.row_schema import LABEL, ROW_ID, Codec, DataField, Dtype, ImageSpec, TensorSpec
from sparkring.pipelines.data.dataset.unischema_pickle import PetastormField

NUMERIC, IMAGE = "numeric", "image"
MOST_CLASSES = 100_000


def fields_of_columns(columns: pa.Schema, *, origin: str) -> tuple[DataField, ...]:
    """The columns of plain Parquet files.

    Raises:
        DatasetError: a column is no number; all such are named.
    """
    names = {str(pa.from_numpy_dtype(np.dtype(dtype))): dtype for dtype in get_args(Dtype)}
    other = [f"{column.name} ({column.type})" for column in columns if str(column.type) not in names]
    if other:
        raise DatasetError(f"{origin} has columns that are not numbers: {', '.join(other)}; adopt takes numbers, and what Petastorm "
                           "encodes. Prepare a dataset from it instead, with a source of format parquet.")
    return tuple(DataField(name=column.name, dtype=names[str(column.type)], nullable=column.nullable) for column in columns)


def fields_of_unischema(described: Iterable[PetastormField], columns: pa.Schema, *, origin: str) -> tuple[DataField, ...]:
    """The fields of a Petastorm dataset; whether one may be null is what the files say.

    Raises:
        DatasetError: a field is neither a number nor one of Petastorm's arrays and images; all such are named.
    """
    known, dtypes, codecs = {column.name: column for column in columns}, get_args(Dtype), get_args(Codec)
    listed = list(described)
    other = [f"{field.name} ({field.dtype} by {field.codec})" for field in listed
             if field.dtype not in dtypes or field.codec not in codecs or (field.codec == "scalar" and field.shape)]
    if other:
        raise DatasetError(f"{origin} has fields that are no numbers, arrays or images: {', '.join(other)}; "
                           "prepare a dataset from it instead.")
    return tuple(DataField.model_validate({
        "name": field.name, "dtype": field.dtype, "shape": field.shape, "codec": field.codec,
        "nullable": known[field.name].nullable if field.name in known else field.nullable}) for field in listed)


def tensors_of(fields: Sequence[DataField], *, row_id: str, label: str, task: Task) -> tuple[TensorSpec, ...]:
    """The tensors of a batch.

    Raises:
        DatasetError: there is no such row id or label, or it is not of a kind that serves.
    """
    by_name = {field.name: field for field in fields}
    for name, what in ((row_id, "row id"), (label, "label")):
        if name not in by_name:
            raise DatasetError(f"there is no column {name} for the {what}; there are {', '.join(by_name)}.")
    if not _is_scalar(by_name[row_id]) or "int" not in by_name[row_id].dtype:
        raise DatasetError(f"the row id {row_id} is {by_name[row_id].dtype} by {by_name[row_id].codec}, it must be an integer.")
    inputs = [field for field in fields if field.name not in (row_id, label)]
    numbers = tuple(field.name for field in inputs if _is_scalar(field))
    specs = [TensorSpec(name=NUMERIC, dtype="float32", fields=numbers)] if numbers else []
    images = [field for field in inputs if field.codec in ("png", "jpeg") and None not in field.shape]
    for field in inputs:
        if field in images:
            name, channels = IMAGE if len(images) == 1 else field.name, _channels(field)
            specs.append(TensorSpec(name=name, dtype="float32", fields=(field.name,), stacked=False, shape=_fixed(field, channels=channels),
                                    image=ImageSpec(mean=(0.0,) * channels, std=(1.0,) * channels)))
        elif field.codec in ("ndarray", "compressed_ndarray") and None not in field.shape:
            specs.append(TensorSpec(name=field.name, dtype=field.dtype if field.dtype.startswith("float") else "int64",
                                    fields=(field.name,), stacked=False, shape=_fixed(field)))
    return (*specs, TensorSpec(name=LABEL, dtype="float32" if task == "binary" else "int64", fields=(label,), stacked=False),
            TensorSpec(name=ROW_ID, dtype="int64", fields=(row_id,), stacked=False))


def task_of(label: str, values: NDArray[np.generic]) -> tuple[Task, int]:
    """What a label asks for, and how many classes there are.

    Args:
        label: Its name.
        values: (rows,) of the train split.
    Raises:
        DatasetError: they are neither 0 and 1 nor class numbers.
    """
    found = np.unique(values)
    if len(found) == 0 or not np.array_equal(found, np.round(found)) or found[0] < 0 or found[-1] >= MOST_CLASSES:
        shown = ", ".join(str(value) for value in found[:3].tolist())
        raise DatasetError(f"the label {label} holds {shown or 'nothing'} ...; it must hold 0 and 1, or the numbers of classes from 0 on "
                           "(regression is not supported yet). Name another column, or prepare a dataset whose query makes classes of it.")
    classes = int(found[-1]) + 1
    return ("binary", 2) if classes <= 2 else ("multiclass", classes)


def require_classes(label: str, values: NDArray[np.generic], *, split: str, classes: int) -> None:
    """See that a split other than train has no label that train rows cannot have.

    Args:
        label: Its name.
        values: (rows,) of the split.
        split: For the error.
        classes: What ``task_of`` found.
    Raises:
        DatasetError: it has one.
    """
    strange = values[~np.isin(values, np.arange(classes))]
    if len(strange):
        raise DatasetError(f"the label {label} is {strange[0]} in {len(strange)} rows of the split {split}; train rows have 0 to "
                           f"{classes - 1} only. Take those rows out, or deal the splits out anew.")


def preprocessing_of(fields: Sequence[DataField], tensors: Sequence[TensorSpec], *, task: Task, classes: int, rows: int) -> Preprocessing:
    """What models must know of the inputs; nothing is fitted, numbers are taken as they are."""
    by_name, specs = {field.name: field for field in fields}, {spec.name: spec for spec in tensors}
    numbers = specs[NUMERIC].fields if NUMERIC in specs else ()
    image = None
    if IMAGE in specs and (spec := specs[IMAGE].image):
        field = by_name[specs[IMAGE].fields[0]]
        channels, height, width = specs[IMAGE].shape
        image = ImageFeature(column=field.name, height=height, width=width, channels=channels,
                             codec="png" if field.codec == "png" else "jpeg", mean=spec.mean, std=spec.std)
    return Preprocessing(numeric=tuple(NumericFeature(column=name, mean=0.0, std=1.0, nulls=0) for name in numbers), categorical=(),
                         train_rows=rows, image=image, classes=tuple(map(str, range(classes))) if task == "multiclass" else (),
                         class_type="bigint")


def _is_scalar(field: DataField) -> bool:
    return field.codec == "scalar"


def _channels(field: DataField) -> int:
    return int(field.shape[2] or 1) if len(field.shape) == 3 else 1


def _fixed(field: DataField, *, channels: int = 0) -> tuple[int, ...]:
    """The field's shape, of an image with the channels first."""
    shape = tuple(int(size) for size in field.shape if size is not None)
    return (channels, *shape[:2]) if channels else shape
