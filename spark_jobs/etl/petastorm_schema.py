"""What Petastorm keeps beside the Parquet files of a split, so that ``make_reader`` and ``make_batch_reader`` open it.

Petastorm's ``materialize_dataset`` does the same from inside Spark, but it needs a SparkContext (none over Spark
Connect) and changes its Hadoop settings on the way. Here the schema and the row-group counts are handed to Petastorm's
own metadata writer afterwards. They end in ``_common_metadata``, as a pickle: it is Petastorm's format. Our own reader
takes the schema from the manifest and never opens that file.
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from petastorm.codecs import ScalarCodec
from petastorm.etl.dataset_metadata import ROW_GROUPS_PER_FILE_KEY, UNISCHEMA_KEY
from petastorm.unischema import Unischema, UnischemaField
from petastorm.utils import add_to_dataset_metadata
from pyspark.sql import types

from sparkring.pipelines.data.manifest import DataField

_SPARK_TYPES = {
    "int8": types.ByteType, "int16": types.ShortType, "int32": types.IntegerType, "int64": types.LongType,
    "float32": types.FloatType, "float64": types.DoubleType, "bool": types.BooleanType,
}


def unischema(name: str, fields: Sequence[DataField]) -> Unischema:
    """Describe the files as Petastorm does: numpy type, shape and codec of each field."""
    return Unischema(name, [
        UnischemaField(field.name, np.dtype(field.dtype).type, field.shape, ScalarCodec(_SPARK_TYPES[field.dtype]()), field.nullable)
        for field in fields])


def write_metadata(folder: Path, schema: Unischema, row_groups: Mapping[str, int]) -> None:
    """Make ``folder`` a Petastorm dataset.

    Args:
        folder: Holds the Parquet files of one split.
        schema: What the fields are.
        row_groups: Row groups of each file, by its name in the folder.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Petastorm takes pyarrow's older dataset object
        dataset = pq.ParquetDataset(str(folder), use_legacy_dataset=True)
        add_to_dataset_metadata(dataset, UNISCHEMA_KEY, pickle.dumps(schema))
        add_to_dataset_metadata(dataset, ROW_GROUPS_PER_FILE_KEY, json.dumps(dict(row_groups)))
