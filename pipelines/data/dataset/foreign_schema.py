"""The schema of a dataset that another program wrote: its columns, the tensors made from them, and its label's task.

Pure: schemas and values in, parts of a manifest out. All numbers become one stacked tensor, unchanged, and each array
or image of fixed size becomes a tensor. A ragged array gets a column but no tensor, since nothing says how to pad it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkring.conf.schema import Task
from sparkring.errors import DatasetError
from sparkring.models.inputs import CATEGORICAL, IMAGE, NUMERIC
from sparkring.pipelines.data.dataset.preprocessing import ImageFeature, NumericFeature, Preprocessing
from sparkring.pipelines.data.dataset.row_schema import (
    ARRAY_CODECS,
    IMAGE_CODECS,
    LABEL,
    ROW_ID,
    Codec,
    DataField,
    Dtype,
    ImageSpec,
    Standardisation,
    TensorSpec,
)
from sparkring.pipelines.data.dataset.unischema_pickle import PetastormField

MOST_CLASSES = 100_000


def fields_of_columns(columns: pa.Schema, *, origin: str) -> tuple[DataField, ...]:
    """Describe the columns of plain Parquet files.

    Raises:
        DatasetError: some columns are not numbers; the error names them all.
    """
    names = {str(pa.from_numpy_dtype(np.dtype(dtype))): dtype for dtype in get_args(Dtype)}
    other = [f"{column.name} ({column.type})" for column in columns if str(column.type) not in names]
    if other:
        raise DatasetError(f"{origin} has columns that are not numbers: {', '.join(other)}; adopt takes numbers, and fields that Petastorm "
                           "encoded. Prepare a dataset from it instead, with a source of format parquet.")
    return tuple(DataField(name=column.name, dtype=names[str(column.type)], nullable=column.nullable) for column in columns)


def fields_of_unischema(described: Iterable[PetastormField], columns: pa.Schema, *, origin: str) -> tuple[DataField, ...]:
    """Describe the fields of a Petastorm dataset; the files say whether a field may be null.

    Raises:
        DatasetError: some fields are neither numbers nor Petastorm's arrays and images; the error names them all.
    """
    known, dtypes, codecs = {column.name: column for column in columns}, get_args(Dtype), get_args(Codec)
    listed = list(described)
    other = [f"{field.name} ({field.dtype} by {field.codec})" for field in listed
             if field.dtype not in dtypes or field.codec not in codecs or (field.codec == "scalar" and field.shape)]
    if other:
        raise DatasetError(f"{origin} has fields that are not numbers, arrays or images: {', '.join(other)}; "
                           "prepare a dataset from it instead.")
    return tuple(DataField.model_validate({
        "name": field.name, "dtype": field.dtype, "shape": field.shape, "codec": field.codec,
        "nullable": known[field.name].nullable if field.name in known else field.nullable}) for field in listed)


def tensors_of(fields: Sequence[DataField], *, row_id: str, label: str, task: Task,
               standard: Standardisation | None = None) -> tuple[TensorSpec, ...]:
    """Describe the tensors of a batch; ``standard`` is for a label that is a number.

    Raises:
        DatasetError: there is no column for the row id or the label, or the row id is not an integer.
    """
    by_name = {field.name: field for field in fields}
    for name, what in ((row_id, "row id"), (label, "label")):
        if name not in by_name:
            raise DatasetError(f"there is no column {name} for the {what}; the columns are {', '.join(by_name)}.")
    if not _is_scalar(by_name[row_id]) or "int" not in by_name[row_id].dtype:
        raise DatasetError(f"the row id {row_id} is {by_name[row_id].dtype} by {by_name[row_id].codec}; name a column of integers.")
    inputs = [field for field in fields if field.name not in (row_id, label)]
    numbers = tuple(field.name for field in inputs if _is_scalar(field))
    specs = [TensorSpec(name=NUMERIC, dtype="float32", fields=numbers),
             TensorSpec(name=CATEGORICAL, dtype="int64", fields=())] if numbers else []  # empty, as prepare makes it: networks take both
    images = [field for field in inputs if field.codec in IMAGE_CODECS and None not in field.shape]
    for field in inputs:
        if field in images:
            name, channels = IMAGE if len(images) == 1 else field.name, _channels(field)
            specs.append(TensorSpec(name=name, dtype="float32", fields=(field.name,), stacked=False, shape=_fixed(field, channels=channels),
                                    image=ImageSpec(mean=(0.0,) * channels, std=(1.0,) * channels)))
        elif field.codec in ARRAY_CODECS and None not in field.shape:
            specs.append(TensorSpec(name=field.name, dtype=field.dtype if field.dtype.startswith("float") else "int64",
                                    fields=(field.name,), stacked=False, shape=_fixed(field)))
    dtype: Dtype = "float32" if task == "binary" else "int64" if task == "multiclass" else "float64"
    return (*specs, TensorSpec(name=LABEL, dtype=dtype, fields=(label,), stacked=False, standard=standard),
            TensorSpec(name=ROW_ID, dtype="int64", fields=(row_id,), stacked=False))


def task_of(label: str, values: NDArray[np.generic]) -> tuple[Task, int]:
    """Find the task of a label, and its number of classes; fractions are numbers to predict, and have none.

    Args:
        label: Its name.
        values: (rows,) of the train split.
    Raises:
        DatasetError: the values are whole numbers, but neither 0 and 1 nor numbers of classes; or there are none.
    """
    found = np.unique(values)
    if len(found) and not np.array_equal(found, np.round(found)):
        return "regression", 0
    if len(found) == 0 or found[0] < 0 or found[-1] >= MOST_CLASSES:
        shown = ", ".join(str(value) for value in found[:3].tolist())
        raise DatasetError(f"the label {label} holds {shown or 'nothing'} ...; whole numbers must be 0 and 1, or numbers of classes from 0 "
                           "up. Name another column, or prepare a dataset from these files, with prepare.task: regression for a number.")
    classes = int(found[-1]) + 1
    return ("binary", 2) if classes <= 2 else ("multiclass", classes)


def require_classes(label: str, values: NDArray[np.generic], *, split: str, classes: int) -> None:
    """Check that the labels of a split other than train are classes of the train split.

    Args:
        label: Its name.
        values: (rows,) of the split.
        split: The split's name, for the error.
        classes: Number of classes that ``task_of`` found.
    Raises:
        DatasetError: a label is not one of these classes.
    """
    strange = values[~np.isin(values, np.arange(classes))]
    if len(strange):
        raise DatasetError(f"the label {label} is {strange[0]} in {len(strange)} rows of the split {split}; train rows have 0 to "
                           f"{classes - 1} only. Remove those rows, or split the rows again.")


def standardisation_of(label: str, values: Mapping[str, NDArray[np.generic]]) -> Standardisation:
    """Fit a label that is a number on the train split.

    Args:
        label: Its name.
        values: (rows,) of each split.
    Raises:
        DatasetError: a split holds a number that is not finite, or the same number only.
    """
    for split, found in values.items():
        strange = found[~np.isfinite(found)]
        if len(strange):
            raise DatasetError(f"the label {label} is {strange[0]} in {len(strange)} rows of the split {split}; remove those rows.")
        if len(np.unique(found)) == 1:
            raise DatasetError(f"the label {label} is {found[0]} in all rows of the split {split}, so there is nothing to predict; "
                               "split the rows again.")
    train = values["train"].astype(np.float64)
    return Standardisation(mean=float(train.mean()), std=float(train.std()))


def preprocessing_of(fields: Sequence[DataField], tensors: Sequence[TensorSpec], *, task: Task, classes: int, rows: int) -> Preprocessing:
    """Describe the inputs for models; nothing is fitted, and numbers stay unchanged."""
    by_name, specs = {field.name: field for field in fields}, {spec.name: spec for spec in tensors}
    numbers = specs[NUMERIC].fields if NUMERIC in specs else ()
    image = None
    if IMAGE in specs and (spec := specs[IMAGE].image):
        field = by_name[specs[IMAGE].fields[0]]
        codec = next(codec for codec in IMAGE_CODECS if codec == field.codec)
        channels, height, width = specs[IMAGE].shape
        image = ImageFeature(column=field.name, height=height, width=width, channels=channels, codec=codec,
                             mean=spec.mean, std=spec.std)
    return Preprocessing(numeric=tuple(NumericFeature(column=name, mean=0.0, std=1.0, nulls=0) for name in numbers), categorical=(),
                         train_rows=rows, image=image, classes=tuple(map(str, range(classes))) if task == "multiclass" else (),
                         class_type="bigint", label=specs[LABEL].standard)


def _is_scalar(field: DataField) -> bool:
    return field.codec == "scalar"


def _channels(field: DataField) -> int:
    return int(field.shape[2] or 1) if len(field.shape) == 3 else 1


def _fixed(field: DataField, *, channels: int = 0) -> tuple[int, ...]:
    """The sizes of the field's fixed axes; of an image (channels, height, width)."""
    shape = tuple(int(size) for size in field.shape if size is not None)
    return (channels, *shape[:2]) if channels else shape
