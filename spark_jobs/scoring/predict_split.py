"""Add a trained network's predictions to rows of a dataset version, whose files Spark's Python workers read themselves, as training does.

    a task's row groups   ->   columns (Arrow, page checksums verified)   ->   ``network.py``   ->   kept columns and answers   ->   Spark

So a row passes through the JVM once, with its answer. Spark's own reader would make rows of columns, and Arrow's columns of them again
for the network, which took more than half of the time (docs/log/2026-11-26-07-scores-read-files.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from sparkring.errors import DatasetError, StorageError
from sparkring.models.networks import REGISTRY
from sparkring.pipelines.data.dataset.integrity import UNREADABLE
from sparkring.pipelines.data.dataset.manifest import DataFile
from sparkring.pipelines.data.dataset.stored_columns import Change
from sparkring.pipelines.data.loading.page_checksums import VerifiedFile
from sparkring.pipelines.data.stores.base import Readable
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.retry import retry_read
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.encoding.petastorm_schema import stored_type
from sparkring.spark_jobs.scoring.columns import predicted_columns, require_free
from sparkring.spark_jobs.scoring.network import Shipped, answer, parts
from sparkring.spark_jobs.scoring.predict import ANSWER, ANSWERS, Model, feature_columns, predictions
from sparkring.spark_jobs.scoring.split_rows import SplitRows
from sparkring.spark_jobs.spark.slots import slots_of

LEAST_BYTES, MOST_BYTES = 1 << 20, 64 << 20
"""The stored bytes that a task reads: at least so many, if there are, and about so many at most."""


class Group(NamedTuple):
    """A row group of a file."""

    path: str
    number: int
    """In the file."""


def predict_split(spark: SparkSession, rows: SplitRows, model: Model, *, keep: Sequence[str], batch_rows: int,
                  top_k: int | None = None) -> DataFrame:
    """Add predictions to rows of a dataset version.

    Args:
        spark: The session that computes.
        rows: The rows.
        model: The model.
        keep: Columns to keep.
        batch_rows: The most rows of a forward pass.
        top_k: The number of likeliest classes to add; None for none.
    Returns:
        ``keep``, then the task's columns. Nothing is computed yet. Spark cannot tell how large it is, and would broadcast it in a join.
    Raises:
        ConfigError: a column of ``keep`` has the name of one that is added.
    """
    card, fields = model.card, {field.name: field for field in rows.fields}
    added = predicted_columns(card.task, top_k)
    require_free(keep, added)
    answered = StructType([*(StructField(name, stored_type(fields[name])) for name in keep), StructField(ANSWER, ANSWERS[card.task])])
    tasks = split_groups(rows.files, tasks=slots_of(spark) or max(1, len(rows.files)))
    work = _Work(rows.dataset_url, tasks, tuple(feature_columns(card)), to_arrow_schema(answered),
                 model.shipped(raw=False, batch_rows=batch_rows), dict(rows.changes))
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))  # a partition of one number for each task
    frame = numbers.mapInArrow(REGISTRY.carrying(partial(_answer_tasks, work=work)), answered)
    return frame.select(*map(named, keep), *predictions(card, top_k))


def split_groups(files: Iterable[DataFile], *, tasks: int) -> tuple[tuple[Group, ...], ...]:
    """Deal the row groups of files to tasks, in their order. A task may get half a row group more than its share.

    Args:
        files: The files.
        tasks: The number of tasks to aim at.
    """
    groups = [(Group(file.path, number), size) for file in files for number, size in enumerate(file.row_group_bytes)]
    most = min(max(sum(size for _, size in groups) / tasks, LEAST_BYTES), MOST_BYTES)
    dealt: list[list[Group]] = []
    room = 0.0
    for group, size in groups:
        if not dealt or room < size / 2:
            dealt.append([])
            room = most
        dealt[-1].append(group)
        room -= size
    return tuple(map(tuple, dealt))


@dataclass(frozen=True)
class _Work:
    """What the workers are to do."""

    dataset_url: str
    tasks: tuple[tuple[Group, ...], ...]
    inputs: tuple[str, ...]
    """The columns that the network reads."""
    answered: pa.Schema
    """The kept columns, then ``ANSWER``."""
    shipped: Shipped
    changes: dict[str, Change]
    """What makes of a column of the files the one that the network takes."""


def _answer_tasks(numbers: Iterable[pa.RecordBatch], work: _Work) -> Iterator[pa.RecordBatch]:
    """Read the row groups of the tasks of these numbers, and ask the network."""
    store, kept = open_store(work.dataset_url), work.answered.names[:-1]
    columns = list(dict.fromkeys([*kept, *work.inputs]))
    for task in (work.tasks[number] for batch in numbers for number in batch.column(0).to_pylist()):
        for path, groups in groupby(task, key=attrgetter("path")):
            with closing(_File(store, path, columns)) as file:
                for group in groups:
                    rows = file.read(group.number)
                    for part in parts(rows.num_rows, work.shipped.batch_rows) if rows.num_rows else []:
                        yield from _answered(rows.slice(part.start, part.stop - part.start), work)


def _answered(rows: pa.Table, work: _Work) -> list[pa.RecordBatch]:
    """The kept columns of rows that become inputs at once, and the answers."""
    *kept, struct = work.answered
    answers = answer([pd.Series(work.changes[name](rows[name].to_numpy())) if name in work.changes else rows[name].to_pandas()
                      for name in work.inputs], work.shipped)
    columns = [rows[field.name].cast(field.type) for field in kept]
    answered = pa.StructArray.from_arrays([_array(answers[field.name]).cast(field.type) for field in struct.type], fields=list(struct.type))
    batches: list[pa.RecordBatch] = pa.Table.from_arrays([*columns, answered], schema=work.answered).to_batches()
    return batches


class _File:
    """A file of the dataset. It is opened once, and again after an error."""

    def __init__(self, store: Readable, path: str, columns: Sequence[str]) -> None:
        self._store, self._path, self._columns = store, path, list(columns)
        self._source: pa.NativeFile | None = None
        self._parquet: tuple[VerifiedFile, pq.ParquetFile] | None = None

    def read(self, number: int) -> pa.Table:
        """The columns of a row group.

        Raises:
            DatasetError: the file is missing or damaged.
            StorageError: storage does not answer.
        """
        try:
            return retry_read(partial(self._read, number))
        except StorageError:
            raise
        except UNREADABLE as error:
            raise DatasetError(f"row group {number} of {self._store.path(self._path)} cannot be read by a Python worker of Spark: {error}; "
                               "check that the executors reach the dataset, and run `sparkring datasets verify`.") from error

    def close(self) -> None:
        """Close the file if it is open."""
        source, self._source, self._parquet = self._source, None, None
        if source is not None:
            with suppress(OSError):
                source.close()

    def _read(self, number: int) -> pa.Table:
        try:
            if self._parquet is None:
                self._source = self._store.open_input(self._path)
                verified = VerifiedFile(self._source, path=self._store.path(self._path))
                self._parquet = verified, pq.ParquetFile(verified, pre_buffer=False)
            verified, parquet = self._parquet
            verified.expect(parquet.metadata, number)
            return parquet.read_row_group(number, columns=self._columns, use_threads=False)
        except OSError:
            self.close()
            raise


def _array(values: NDArray[Any]) -> pa.Array:
    """Answers as Arrow has them: (rows,), with null for NaN, or (rows, n) as lists."""
    if values.ndim == 1:
        return pa.array(values, from_pandas=True)
    ends = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(values.reshape(-1)))
