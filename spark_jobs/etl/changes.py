"""Count the rows that a dataset holds and whose source has changed since: an append keeps them as they are.

Label, split, features and single raw numbers are compared, as they are encoded with the dataset's own preprocessing. Images and
arrays are not: each would have to be decoded again.

    first     the rows' hashes: Spark moves 16 bytes a row
    then      the columns themselves, only if hashes differ: a last digit makes another hash, but not another content
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.columns.labels import number_classes
from sparkring.spark_jobs.etl.columns.splits import split_name
from sparkring.spark_jobs.etl.encoding.table_features import encode
from sparkring.spark_jobs.etl.examples import Query
from sparkring.spark_jobs.etl.sources.committed_files import read_committed

_ID, _LABEL, _SPLIT, _RAW, _THEN, _HASH = "__known_id", "__known_label", "__known_split", "__known_raw_", "__then_", "__known_hash"
_TOLERANCE = 1e-6
"""Of floats: Java's logarithm and sine may differ in the last digit from version to version."""


def count_changed(query: Query, dataset: Dataset, parent: Manifest) -> int:
    """Count the rows of the query that ``parent`` holds with other contents; a row that has lost its label is one of them.

    Args:
        query: The query, in a session in which the sources are visible as tables; its rows may be those only that ``parent`` holds.
        dataset: Where the files are.
        parent: The version to compare with; its columns are the config's.
    Raises:
        EnvironmentProblem, StorageError: Spark cannot read its files.
    """
    now, then = _as_encoded(query, parent), _committed(query, dataset, parent)
    floats, exact = _columns(query, parent)
    if not _count_other_hashes(now, then, floats, exact):
        return 0
    both = now.join(then, sf.col(_ID) == sf.col(_THEN + _ID))
    differs = [*(_apart(sf.col(name), sf.col(_THEN + name)) for name in floats),
               *(~sf.col(name).eqNullSafe(sf.col(_THEN + name)) for name in exact)]
    return both.where(reduce(or_, differs)).count()


def _as_encoded(query: Query, parent: Manifest) -> DataFrame:
    """The rows of the query under the names of ``_columns``."""
    config, fitted = query.config, parent.preprocessing
    rows = number_classes(query.rows, config.label, fitted.classes) if fitted.classes else query.rows
    sources = dict.fromkeys(feature.source for feature in (*fitted.numeric, *fitted.with_ids))
    kept = [named(config.id_column).cast("bigint").alias(_ID), named(config.label).cast("double").alias(_LABEL),
            split_name(config).alias(_SPLIT), *(named(name).cast("double").alias(_RAW + name) for name in _raw_numbers(query))]
    return encode(rows.select(*kept, *map(named, sources)), fitted, in_folds=bool(parent.folds))


def _committed(query: Query, dataset: Dataset, parent: Manifest) -> DataFrame:
    """The rows of ``parent``, each name with ``_THEN`` before it; ``known_rows`` has read its files before."""
    config, fitted = query.config, parent.preprocessing
    columns = {_ID: named(parent.row_id), _LABEL: named(parent.label).cast("double"),
               **{_RAW + name: named(name).cast("double") for name in _raw_numbers(query)},
               **{name: named(name) for name in (*fitted.numeric_columns, *(feature.column for feature in fitted.with_ids))}}
    assert config.id_column == parent.row_id
    splits = (read_committed(query.rows.sparkSession, dataset.store, split.files, verified=True).select(
        sf.lit(name).alias(_THEN + _SPLIT), *(column.alias(_THEN + each) for each, column in columns.items()))
        for name, split in parent.splits.items())
    return reduce(DataFrame.unionByName, splits)


def _columns(query: Query, parent: Manifest) -> tuple[list[str], list[str]]:
    """The columns to compare: those that hold floats, and the others."""
    fitted, raw = parent.preprocessing, query.config.features.raw
    real = {each.column for each in raw if each.dtype.startswith("float")}
    floats = [*fitted.numeric_columns, *(_RAW + name for name in _raw_numbers(query) if name in real), _LABEL]
    return floats, [_SPLIT, *(feature.column for feature in fitted.with_ids),
                    *(_RAW + name for name in _raw_numbers(query) if name not in real)]


def _count_other_hashes(now: DataFrame, then: DataFrame, floats: list[str], exact: list[str]) -> int:
    """Rows of one id and different hashes: all that differ, and maybe some that do not."""
    sides = []
    for frame, prefix in ((now, ""), (then, _THEN)):
        # Raw floats as they are stored. A null leaves Spark's hash as it was, so that it is told apart by whether there is one.
        values = [*(sf.col(prefix + name).cast("float" if name.startswith(_RAW) else "double") for name in floats),
                  *(sf.col(prefix + name).cast("string" if name == _SPLIT else "double") for name in exact)]
        hashed = sf.xxhash64(*values, *(value.isNull() for value in values))
        sides.append(frame.select(sf.col(prefix + _ID), hashed.alias(prefix + _HASH)))
    here, there = sides
    return here.join(there, sf.col(_ID) == sf.col(_THEN + _ID)).where(sf.col(_HASH) != sf.col(_THEN + _HASH)).count()


def _raw_numbers(query: Query) -> list[str]:
    return [raw.column for raw in query.config.features.raw if not raw.shape]


def _apart(now: Column, then: Column) -> Column:
    """Whether two floats differ by more than their last digits, or one alone is null."""
    near = sf.abs(now - then) <= _TOLERANCE * sf.greatest(sf.abs(then), sf.lit(1.0))
    return ~now.eqNullSafe(then) & ~sf.coalesce(near, sf.lit(False))  # noqa: FBT003 - a column
