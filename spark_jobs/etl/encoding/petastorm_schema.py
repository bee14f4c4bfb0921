"""Petastorm's metadata for the Parquet files of a split, so that ``make_reader`` and ``make_batch_reader`` open it.

Petastorm itself is not needed: its ``materialize_dataset`` asks for a SparkContext, which Spark Connect does not have, and changes
its Hadoop settings. Here the same two entries, the schema and the row-group counts, go into ``_common_metadata`` after the write.
Our own reader takes the schema from the manifest and never opens that file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types

from sparkring.pipelines.data.dataset.row_schema import DataField
from sparkring.pipelines.data.dataset.unischema_pickle import UNISCHEMA_KEY
from sparkring.spark_jobs.etl.encoding.schema_pickle import SPARK_TYPES

ROW_GROUPS_KEY = b"dataset-toolkit.num_row_groups_per_file.v1"
"""Petastorm's key of the counts (petastorm 0.13.1, etl/dataset_metadata.py)."""


def stored_type(field: DataField) -> types.DataType:
    """The Spark type of a field's column."""
    kind: type[types.DataType] = getattr(types, SPARK_TYPES[field.dtype]) if field.codec == "scalar" else types.BinaryType
    return kind()


def dataset_metadata(files: pa.Schema, unischema: bytes, row_groups: Mapping[str, int]) -> bytes:
    """The content of ``_common_metadata``, which makes a folder a Petastorm dataset.

    Args:
        files: The Arrow schema of the folder's Parquet files.
        unischema: Petastorm's description of the fields, as ``schema_pickle.py`` writes it.
        row_groups: Row groups of each file, by its name in the folder.
    """
    keys = {UNISCHEMA_KEY: unischema, ROW_GROUPS_KEY: json.dumps(dict(row_groups)).encode()}
    sink = pa.BufferOutputStream()
    pq.write_metadata(files.with_metadata({**(files.metadata or {}), **keys}), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data
