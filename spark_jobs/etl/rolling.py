"""A split by time that rolls: its borders are counted back from the newest row, anew with each version.

    version 1   train ........ | validation | test |
    version 2   train .................. | validation | test |       an append: newer rows came

Rows of the parent's validation and test splits fall anew by their time, which their files hold (``SPLIT_TIME``); they are written again,
and train files only grow. A row is never taken out of train: borders do not move back. So no version tests a model on rows that an
earlier version trained on.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import PrepareConfig, TimeSplit
from sparkring.conf.schema.data.splits import length_of
from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.manifest import Manifest, RollingSplit
from sparkring.pipelines.data.dataset.row_schema import SPLIT_TIME
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.columns.splits import SPLITS, split_at
from sparkring.spark_jobs.etl.encoding.arrays import KEPT_PREFIX
from sparkring.spark_jobs.etl.sources.committed_files import read_committed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def roll(config: PrepareConfig, examples: DataFrame, parent: RollingSplit | None = None) -> RollingSplit | None:
    """Where the borders of a split by ages lie; None for any other split.

    Args:
        config: Names the split.
        examples: The new rows.
        parent: The borders of the version that they are appended to.
    Raises:
        SourceError: no borders can be counted back from the newest time.
    """
    if not (isinstance(config.split, TimeSplit) and config.split.rolls):
        return None
    newest = sf.max(_micros(config.split))
    found, shown = examples.agg(newest, sf.timestamp_micros(newest).cast("string")).collect()[0]
    if found is None and parent is not None:
        return parent
    try:  # without any time, whatever the borders: check_examples then says that there is no row, or that times are null
        return borders_of(config.split, _EPOCH + timedelta(microseconds=found or 0), parent)
    except OverflowError:
        raise SourceError(f"the newest row has {shown} in column {config.split.column}, and no dates of the years 1 to 9999 can be counted "
                          "back from it by the ages of prepare.split; correct the time or leave its row out in the query.") from None


def borders_of(split: TimeSplit, newest: datetime, parent: RollingSplit | None = None) -> RollingSplit:
    """The borders for a newest row; never before those of ``parent``. Pure.

    Args:
        split: A split by ages.
        newest: The time of the newest row of all that were read, with its time zone.
        parent: The borders of the version before.
    """
    assert split.test is not None
    assert split.validation is not None
    if parent is not None and newest <= parent.newest:
        return parent
    test_from = newest - length_of(split.test)
    return RollingSplit(newest=newest, validation_from=test_from - length_of(split.validation), test_from=test_from)


def at_borders(config: PrepareConfig, rolling: RollingSplit | None) -> PrepareConfig:
    """The config with the moments of a rolling split in place of its ages; itself for any other split. Pure."""
    if rolling is None:
        return config
    assert isinstance(config.split, TimeSplit)
    split = TimeSplit(column=config.split.column, validation_from=rolling.validation_from, test_from=rolling.test_from)
    return config.model_copy(update={"split": split})


def with_split_time(examples: DataFrame, config: PrepareConfig, rolling: RollingSplit | None) -> DataFrame:
    """The rows with the time that a rolling split goes by, in microseconds since 1970; as they are for any other split."""
    if rolling is None:
        return examples
    assert isinstance(config.split, TimeSplit)
    return examples.withColumn(KEPT_PREFIX + SPLIT_TIME, _micros(config.split))


def held_out_again(spark: SparkSession, dataset: Dataset, parent: Manifest, rolling: RollingSplit, *, split: str) -> DataFrame:
    """The encoded rows of the parent's validation and test splits, and in the column ``split`` the split in which each falls now.

    ``known_rows`` has read the files before.

    Raises:
        EnvironmentProblem, StorageError: Spark cannot read them.
    """
    splits = [parent.splits[name] for name in SPLITS[1:] if name in parent.splits]
    frames = [read_committed(spark, dataset.store, split.files, verified=True) for split in splits]
    moment = sf.timestamp_micros(sf.col(SPLIT_TIME))
    moments = TimeSplit(column=SPLIT_TIME, validation_from=rolling.validation_from, test_from=rolling.test_from)
    return reduce(DataFrame.unionByName, frames).withColumn(split, split_at(moment, moments))


def _micros(split: TimeSplit) -> Column:
    """A row's time in microseconds since 1970."""
    return sf.unix_micros(named(split.column).cast("timestamp"))
