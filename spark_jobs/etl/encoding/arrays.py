"""Raw columns: numbers, and arrays of them as Petastorm's array codecs store them.

    column of the query      stored as                   a value of the dataset's column
    number, boolean          scalar                      the number, in the wanted type
    array of numbers         ndarray                     what numpy.save writes; equal shapes share one header, so a whole column
                                                         is made at once (of ragged rows, those of one length together)
                             compressed_ndarray          what numpy.savez_compressed writes, row by row

Other features of such a column (its bucket, its hash) are computed from the query's values: the stored column then stands
beside the query's under a prefixed name, until ``table_features.py`` renames it. A null, a number that the type cannot hold, or an
array whose length contradicts the config ends the job.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from sparkring.conf.schema import FeaturesConfig, RawConfig
from sparkring.errors import ConfigError
from sparkring.pipelines.data.dataset.integrity import arrow_types
from sparkring.pipelines.data.dataset.row_schema import DataField
from sparkring.spark_jobs.etl.encoding.npy import npy_column
from sparkring.spark_jobs.etl.encoding.petastorm_schema import stored_type

KEPT_PREFIX = "__raw_"
"""Prefix of a stored column whose source column other features need too. No column that a config names begins so."""


def describe_raw(config: RawConfig) -> DataField:
    """Describe the dataset's column of a raw feature."""
    return DataField(name=config.column, dtype=config.dtype, shape=config.shape, codec=config.codec if config.shape else "scalar")


def store_raw(frame: DataFrame, features: FeaturesConfig) -> DataFrame:
    """Replace raw columns by their stored form, or add it under ``KEPT_PREFIX`` where other features need the raw column too."""
    fields = {raw.column: describe_raw(raw) for raw in features.raw}
    shared = [name for name in frame.columns if name in fields and name in _sources(features)]
    stored = {name: StructField(name, stored_type(field), nullable=False) for name, field in fields.items()}
    schema = StructType([field if field.name in shared else stored.get(field.name, field) for field in frame.schema]
                        + [StructField(KEPT_PREFIX + name, stored[name].dataType, nullable=False) for name in shared])
    return frame.mapInArrow(partial(_store_batches, fields=fields, shared=shared), schema)


def _sources(features: FeaturesConfig) -> set[str]:
    """Columns that derived features are computed from."""
    return {*(each.column for each in features.moments), *(each.column for each in features.buckets),
            *(each.column for each in features.hashed)}


def stored_column(column: pa.Array, field: DataField) -> pa.Array:
    """Encode one column of a batch as the dataset stores it.

    Raises:
        ValueError: a null, a number that the type cannot hold, or an array of another shape.
    """
    if column.null_count:
        raise ValueError(f"column {field.name} holds {column.null_count} nulls; fill them or leave those rows out in the query")
    if field.codec == "scalar":
        return _checked(column, field).cast(arrow_types(field)[-1])
    lengths = column.value_lengths().to_numpy()
    values = _checked(column.flatten(), field).to_numpy(zero_copy_only=False)
    known = math.prod(size for size in field.shape if size is not None)
    wrong = lengths % known != 0 if None in field.shape else lengths != known
    if wrong.any():
        raise ValueError(f"column {field.name} holds an array of {lengths[wrong][0]} numbers, its shape is {list(field.shape)}; "
                         "correct shape, or give null for an axis whose length differs")
    match field.codec:
        case "ndarray":
            return _packed(values, lengths, field)
        case "compressed_ndarray":
            ends = np.cumsum(lengths)
            return pa.array([_compressed(values[end - size:end], field) for end, size in zip(ends, lengths, strict=True)], pa.binary())
        case "png" | "jpeg":
            raise AssertionError(f"column {field.name} is an image; images.py stores it")
        case unknown:
            assert_never(unknown)


def _checked(values: pa.Array, field: DataField) -> pa.Array:
    """The numbers in the wanted type; one that it cannot hold raises (``ArrowInvalid`` is a ValueError)."""
    if values.null_count:
        raise ValueError(f"column {field.name} holds arrays with nulls; fill them in the query")
    wanted = pa.from_numpy_dtype(np.dtype(field.dtype))
    if field.dtype.startswith("float"):  # losing digits is no error, nor is an infinity or NaN of the source
        doubles = values.cast(pa.float64())
        narrow = doubles.cast(wanted)
        _refuse(doubles, pc.and_(pc.is_finite(doubles), pc.invert(pc.is_finite(narrow))), field)
        return narrow
    if field.dtype == "bool" and not pa.types.is_boolean(values.type):  # a cast would make true of all but 0
        doubles = values.cast(pa.float64())
        _refuse(doubles, pc.invert(pc.is_in(doubles, value_set=pa.array([0.0, 1.0]))), field)
        return doubles.cast(pa.int8()).cast(wanted)
    return values.cast(wanted)


def _refuse(values: pa.Array, wrong: pa.Array, field: DataField) -> None:
    """Raise ValueError if any value is wrong."""
    found = values.filter(wrong)
    if len(found):
        raise ValueError(f"column {field.name} holds {found[0].as_py():g}, which {field.dtype} cannot hold; correct dtype or the query")


def require_pad(config: RawConfig) -> None:
    """Check that a ragged column's type can hold its ``pad``.

    Raises:
        ConfigError: it cannot; NumPy would store another number.
    """
    if config.pad is None or config.dtype.startswith("float"):
        return
    kind = np.dtype(config.dtype)
    least, most = (0, 1) if kind == np.bool_ else (np.iinfo(kind).min, np.iinfo(kind).max)
    if not (least <= config.pad <= most and config.pad == round(config.pad)):
        raise ConfigError(f"prepare.features.raw: {config.column} is padded with {config.pad:g}, which {config.dtype} cannot hold; "
                          "give another pad or dtype.")


def _packed(values: NDArray[np.generic], lengths: NDArray[np.int32], field: DataField) -> pa.Array:
    """Cells of ``numpy.save``'s bytes: those of one length at once, then all in the order of the rows."""
    starts = np.cumsum(lengths) - lengths
    cells, order = [], []
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        picked = values[(starts[rows][:, None] + np.arange(length)).ravel()]
        cells.append(npy_column(picked.reshape(len(rows), *_shape(field, int(length)))))
        order.append(rows)
    if not cells:
        return pa.array([], pa.binary())
    return pa.concat_arrays(cells).take(pa.array(np.argsort(np.concatenate(order))))


def _shape(field: DataField, length: int) -> tuple[int, ...]:
    """The shape of one row with that many numbers."""
    known = math.prod(size for size in field.shape if size is not None)
    return tuple(length // known if size is None else size for size in field.shape)


def _compressed(values: NDArray[np.generic], field: DataField) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, arr=values.reshape(_shape(field, len(values))))
    return file.getvalue()


def _store_batches(batches: Iterable[pa.RecordBatch], *, fields: dict[str, DataField], shared: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Encode raw columns, in a task."""
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        stored = {name: stored_column(columns[name], field) for name, field in fields.items()}
        yield pa.RecordBatch.from_pydict({
            **{name: column if name in shared else stored.get(name, column) for name, column in columns.items()},
            **{KEPT_PREFIX + name: stored[name] for name in shared}})
