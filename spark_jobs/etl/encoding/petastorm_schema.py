"""Petastorm's metadata for the Parquet files of a split, so that ``make_reader`` and ``make_batch_reader`` open it.

Petastorm's ``materialize_dataset`` needs a SparkContext, which Spark Connect does not have, and changes its Hadoop settings. Here
the same two entries, the schema and the row-group counts, go into ``_common_metadata`` after the write. The schema is a pickle,
as Petastorm's format asks. Our own reader takes the schema from the manifest and never opens that file.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from petastorm.codecs import CompressedImageCodec, CompressedNdarrayCodec, DataframeColumnCodec, NdarrayCodec, ScalarCodec
from petastorm.etl.dataset_metadata import ROW_GROUPS_PER_FILE_KEY, UNISCHEMA_KEY
from petastorm.unischema import Unischema, UnischemaField
from pyspark.sql import types

from sparkring.pipelines.data.dataset.row_schema import DataField

COMMON_METADATA = "_common_metadata"

_SCALARS: dict[str, types.DataType] = {
    "int8": types.ByteType(), "int16": types.ShortType(), "int32": types.IntegerType(), "int64": types.LongType(),
    "uint8": types.ShortType(), "uint16": types.IntegerType(), "uint32": types.LongType(),  # Spark has none unsigned
    "float16": types.FloatType(), "float32": types.FloatType(), "float64": types.DoubleType(), "bool": types.BooleanType(),
}


def stored_type(field: DataField) -> types.DataType:
    """The Spark type of a field's column."""
    return _SCALARS[field.dtype] if field.codec == "scalar" else types.BinaryType()


def unischema(name: str, fields: Sequence[DataField]) -> Unischema:
    """Describe the files as Petastorm does: numpy type, shape and codec of each field."""
    return Unischema(name, [
        UnischemaField(field.name, np.dtype(field.dtype).type, field.shape, _codec(field), field.nullable) for field in fields])


def _codec(field: DataField) -> DataframeColumnCodec:
    match field.codec:
        case "scalar":
            return ScalarCodec(stored_type(field))
        case "ndarray":
            return NdarrayCodec()
        case "compressed_ndarray":
            return CompressedNdarrayCodec()
        case "png" | "jpeg":
            return CompressedImageCodec(field.codec)
        case _:
            assert_never(field.codec)


def dataset_metadata(files: pa.Schema, schema: Unischema, row_groups: Mapping[str, int]) -> bytes:
    """The content of ``_common_metadata``, which makes a folder a Petastorm dataset.

    Args:
        files: The Arrow schema of the folder's Parquet files.
        schema: Petastorm's description of the fields.
        row_groups: Row groups of each file, by its name in the folder.
    """
    keys = {UNISCHEMA_KEY: pickle.dumps(schema), ROW_GROUPS_PER_FILE_KEY: json.dumps(dict(row_groups)).encode()}
    sink = pa.BufferOutputStream()
    pq.write_metadata(files.with_metadata({**(files.metadata or {}), **keys}), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data
