"""Add a trained network's predictions to rows of a dataset version, whose files Spark's Python workers read themselves, as training does.

    a task's row groups   ->   columns (Arrow, page checksums verified)   ->   ``network.py``   ->   kept columns and answers   ->   Spark

So a row passes through the JVM once, with its answer. Spark's own reader would make rows of columns, and Arrow's columns of them again
for the network, which took more than half of the time (docs/log/2026-11-26-06-scores-read-files.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from sparkring.errors import DatasetError, StorageError
from sparkring.models.networks import REGISTRY
from sparkring.pipelines.data.dataset.integrity import UNREADABLE
from sparkring.pipelines.data.dataset.manifest import DataFile
from sparkring.pipelines.data.loading.page_checksums import read_verified
from sparkring.pipelines.data.stores.base import Readable
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.retry import retry_read
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.encoding.petastorm_schema import stored_type
from sparkring.spark_jobs.scoring.columns import predicted_columns, require_free
from sparkring.spark_jobs.scoring.network import Shipped, answer
from sparkring.spark_jobs.scoring.predict import ANSWER, ANSWERS, Model, feature_columns, predictions
from sparkring.spark_jobs.scoring.split_rows import SplitRows
from sparkring.spark_jobs.spark.slots import slots_of

LEAST_BYTES, MOST_BYTES = 1 << 20, 64 << 20
"""Of a task's row groups, as stored, if there are so many."""


class Group(NamedTuple):
    """A row group."""

    path: str
    number: int


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
        ``keep``, then the task's columns. Nothing is computed yet.
    Raises:
        ConfigError: a column of ``keep`` has the name of one that is added.
    """
    card, fields = model.card, {field.name: field for field in rows.fields}
    added = predicted_columns(card.task, top_k)
    require_free(keep, added)
    answered = StructType([*(StructField(name, stored_type(fields[name])) for name in keep), StructField(ANSWER, ANSWERS[card.task])])
    tasks = split_groups(rows.files, tasks=slots_of(spark) or len(rows.files))
    work = _Work(rows.dataset_url, tasks, tuple(feature_columns(card)), to_arrow_schema(answered),
                 model.shipped(raw=False, batch_rows=batch_rows))
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))  # a partition of one number for each task
    frame = numbers.mapInArrow(REGISTRY.carrying(partial(_answer_tasks, work=work)), answered)
    return frame.select(*map(named, keep), *predictions(card, top_k))


def split_groups(files: Iterable[DataFile], *, tasks: int) -> tuple[tuple[Group, ...], ...]:
    """Deal the row groups of files to tasks, in their order.

    Args:
        files: The files.
        tasks: The number of tasks to aim at.
    """
    groups = [(Group(file.path, number), size) for file in files for number, size in enumerate(file.row_group_bytes)]
    most = min(max(sum(size for _, size in groups) / tasks, LEAST_BYTES), MOST_BYTES)
    dealt: list[list[Group]] = []
    room = 0.0
    for group, size in groups:
        if room < size / 2 or not dealt:
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


def _answer_tasks(numbers: Iterable[pa.RecordBatch], work: _Work) -> Iterator[pa.RecordBatch]:
    """Read the row groups of the tasks of these numbers, and ask the network."""
    store = open_store(work.dataset_url)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for group in work.tasks[number]:
                yield from _answered(store, group, work)


def _answered(store: Readable, group: Group, work: _Work) -> list[pa.RecordBatch]:
    kept = work.answered.names[:-1]
    rows = _read(store, group, list(dict.fromkeys([*kept, *work.inputs])))
    if not rows.num_rows:
        return []
    answers = answer([rows[name].to_pandas() for name in work.inputs], work.shipped)
    column = work.answered.field(ANSWER).type
    columns = [rows[name].cast(work.answered.field(name).type) for name in kept]
    struct = pa.StructArray.from_arrays([_array(answers[field.name]).cast(field.type) for field in column], fields=list(column))
    batches: list[pa.RecordBatch] = pa.Table.from_arrays([*columns, struct], schema=work.answered).to_batches()
    return batches


def _read(store: Readable, group: Group, columns: Sequence[str]) -> pa.Table:
    """Columns of a row group.

    Raises:
        DatasetError: the file is missing or damaged.
        StorageError: storage does not answer.
    """
    def read() -> pa.Table:
        with store.open_input(group.path) as source:
            return read_verified(source, path=store.path(group.path), columns=columns, groups=[group.number])

    try:
        return retry_read(read)
    except StorageError:
        raise
    except UNREADABLE as error:
        raise DatasetError(f"row group {group.number} of {store.path(group.path)} cannot be read by a Python worker of Spark: {error}; "
                           "check that the executors reach the dataset, and run `sparkring datasets verify`.") from error


def _array(values: NDArray[Any]) -> pa.Array:
    """Answers as Arrow has them: (rows,), or (rows, n) as lists."""
    if values.ndim == 1:
        return pa.array(values)
    ends = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(values.reshape(-1)))
