"""Append rows to a dataset: check its latest version, find the rows that it holds, and join both.

The child version names its parent's files and the new ones; no file is copied or changed. New rows are encoded with the
parent's statistics, because the old files cannot be encoded again; for new statistics prepare a whole version. A table's row is
new if its id is; a text is new if its document's name is (``document_list.py``), and is cut into rows of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from sparkring.conf.schema import PrepareConfig
from sparkring.errors import ConfigError
from sparkring.pipelines.data.dataset.manifest import Manifest, Split, joined
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.examples import Query
from sparkring.spark_jobs.etl.sources.committed_files import read_committed

TRAIN = "train"
_ALIKE = ("features", "label", "weight", "row_id", "task", "split")
"""Parts of ``prepare`` that must equal the parent's."""


def appendable(dataset: Dataset, config: PrepareConfig) -> Manifest:
    """Return the latest version, if rows of this config may be appended to it.

    Raises:
        ConfigError: there is none, or its config differs in more than sources and query.
    """
    if not dataset.versions():
        raise ConfigError(f"{dataset.url} has no version to append to; prepare a first one without --append.")
    parent = dataset.manifest()
    wanted = config.model_dump(mode="json")
    other = [key for key in _ALIKE if _given(parent.recipe.get(key)) != _given(wanted[key])]
    if other:
        raise ConfigError(f"version {parent.version} was prepared with another prepare.{other[0]} than this config's, so new rows would "
                          "not match its rows; set it as it was then, or prepare a whole version without --append.")
    return parent


def _given(section: object) -> object:
    """A section without the keys that are null: older versions lack those that were added since."""
    return {key: value for key, value in section.items() if value is not None} if isinstance(section, dict) else section


def require_same_columns(query: Query, parent: Manifest) -> None:
    """Check that the wildcards stand for the columns of ``parent``'s features, and that row ids are made as its were.

    Raises:
        ConfigError: they are not; another set of columns gives other features, or another id for every row.
    """
    fitted, features = parent.preprocessing, query.config.features
    then = {feature.column for feature in (*fitted.numeric, *fitted.categorical) if feature.moment is None}
    now = {*features.numbers, *features.categorical}
    whole = "or prepare a whole version without --append"
    if then != now:
        raise ConfigError(f"the wildcards of prepare.features stand for other columns than in version {parent.version}: "
                          f"{', '.join(sorted(then ^ now))} {'is' if len(then ^ now) == 1 else 'are'} in one of them only; "
                          f"have the query yield the columns that it yielded then, {whole}.")
    if query.row_id_of != parent.row_id_of:
        then_of, now_of = (f"made of {', '.join(columns)}" if columns else "a column of the query"
                           for columns in (parent.row_id_of, query.row_id_of))
        raise ConfigError(f"the row ids of version {parent.version} are {then_of}, and would now be {now_of}, so every row would be new; "
                          f"have the query yield the columns that it yielded then, {whole}.")


def known_rows(spark: SparkSession, dataset: Dataset, parent: Manifest) -> DataFrame:
    """Return one column with the ids of all rows of ``parent``.

    Raises:
        EnvironmentProblem, StorageError: Spark cannot read its files.
    """
    files = (file for split in parent.splits.values() for file in split.files)
    return read_committed(spark, dataset.store, files).select(named(parent.row_id).alias("__known_row"))


def joined_splits(parent: Manifest, new: Mapping[str, Split]) -> dict[str, Split]:
    """The parent's splits, each followed by its new files; of a rolling split, whose held-out rows are written again, train only."""
    if parent.rolling is not None:
        return {**new, TRAIN: joined([parent.splits[TRAIN], new[TRAIN]]) if TRAIN in new else parent.splits[TRAIN]}
    return {name: joined([split, new[name]]) if name in new else split for name, split in parent.splits.items()}
