"""Encode the features of a table as the numbers that the network takes: numbers are scaled, categories become ids.

Spark columns in, Spark columns out, computed later by Spark. Images, arrays and texts are encoded by the modules beside this one.

Prepare and the scoring of raw rows share these expressions. ``encode`` looks values up by a broadcast hash join per column, at a cost
that does not grow with the vocabulary; a map literal would be searched from its beginning for every row. Scoring looks them up in
Spark's Python workers (``scoring/network.py``), where the rows go anyway: six joins cost it more than the network did.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sparkring.pipelines.data.dataset.preprocessing import CategoricalFeature, NumericFeature, Preprocessing
from sparkring.spark_jobs.etl.columns.derive import bucket_of, hash_of, value_of
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.encoding.arrays import KEPT_PREFIX
from sparkring.spark_jobs.spark.versions.arrow_frames import frame_of


def encode(frame: DataFrame, preprocessing: Preprocessing, *, in_folds: bool = False) -> DataFrame:
    """Replace each raw feature by its encoded value.

    Args:
        frame: The source columns of the features. Other columns pass through; one under ``arrays.KEPT_PREFIX`` loses the prefix.
        preprocessing: The fitted figures.
        in_folds: Leave numbers as they are, in double and with nulls, as a version in folds stores them (``stored_columns.py``).
    Returns:
        The other columns, then numbers as float with their null indicators, then ids as int; none of these is null.
    """
    features = (*preprocessing.numeric, *preprocessing.with_ids)
    taken = {name for feature in features for name in (feature.source, feature.column)} | {*preprocessing.numeric_columns}
    others = [named(name).alias(name.removeprefix(KEPT_PREFIX)) for name in frame.columns if name not in taken]
    for place, feature in enumerate(preprocessing.categorical):
        frame = _look_up(frame, feature, place)
    return frame.select(*others, *numbers_of(preprocessing, in_folds=in_folds),
                        *(sf.coalesce(sf.col(_id(place)), sf.lit(0)).alias(feature.column)
                          for place, feature in enumerate(preprocessing.categorical)), *computed_ids(preprocessing))


def numbers_of(preprocessing: Preprocessing, *, in_folds: bool = False) -> list[Column]:
    """The columns of ``preprocessing.numeric_columns``: scaled numbers (in folds, as they are), then the indicators of nulls."""
    return [*((_number(feature).alias(feature.column) if in_folds else _scaled(feature)) for feature in preprocessing.numeric),
            *(_number(feature).isNull().cast("float").alias(feature.indicator) for feature in preprocessing.numeric if feature.indicator)]


def text_of(feature: CategoricalFeature) -> Column:
    """The text that a feature's vocabulary holds, or null."""
    return value_of(feature.column, feature.moment).cast("string")


def computed_ids(preprocessing: Preprocessing) -> list[Column]:
    """The ids that need no vocabulary: of buckets and of hashed texts."""
    return [*(bucket_of(feature).alias(feature.column) for feature in preprocessing.buckets),
            *(hash_of(feature).alias(feature.column) for feature in preprocessing.hashed)]


def _scaled(feature: NumericFeature) -> Column:
    """(x - centre) / spread as a float; a missing x is filled in first."""
    filled = sf.coalesce(_number(feature), sf.lit(feature.filled_with))
    x = sf.log1p(filled) if feature.scale == "log1p" else filled
    return ((x - sf.lit(feature.centre)) / sf.lit(feature.spread)).cast("float").alias(feature.column)


def _number(feature: NumericFeature) -> Column:
    """The value before it is filled: null where it, its encoding, or the logarithm that the scale takes is not finite."""
    least, most = feature.least_and_most
    number = value_of(feature.column, feature.moment).cast("double")
    value = sf.when((number >= least) & (number <= most), number)  # Spark orders NaN above all numbers
    return sf.when(value > -1, value) if feature.scale == "log1p" else value


def _look_up(frame: DataFrame, feature: CategoricalFeature, place: int) -> DataFrame:
    """Add the ids of one column's values; null where the vocabulary has none."""
    value = f"__value_{place}"
    entries = pa.table({value: pa.array(feature.vocabulary, pa.string()), _id(place): pa.array(range(1, feature.size), pa.int32())})
    vocabulary = frame_of(frame.sparkSession, entries)
    return frame.join(sf.broadcast(vocabulary), text_of(feature) == sf.col(value), "left")


def _id(place: int) -> str:
    return f"__id_{place}"
