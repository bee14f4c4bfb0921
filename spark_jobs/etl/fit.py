"""Fit the preprocessing: figures of numbers, vocabularies and borders, from train rows only, in few passes for each kind of feature.

All columns of a kind are folded into (position, value) pairs and grouped by position: one small aggregation, where an
aggregate for each column would grow into code that the JVM no longer compiles (measured: 8.0 against 3.8 s of CPU for
31 columns in a fresh session).
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.conf.schema import BucketConfig, FeaturesConfig, NumberConfig
from sparkring.errors import SparkringError, together
from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, CategoricalFeature, HashFeature, MomentPart, Preprocessing
from sparkring.spark_jobs.etl.columns.derive import value_of
from sparkring.spark_jobs.etl.columns.quantiles import quantiles
from sparkring.spark_jobs.etl.fit_numbers import TrainRows, fit_numbers
from sparkring.spark_jobs.spark.versions.text import is_valid_utf8

_Values = list[tuple[str, MomentPart | None]]
"""Name of a feature, and the part of a moment that it is; None for a column's own value."""


def fit(train: DataFrame, features: FeaturesConfig, *, rows: TrainRows, row_id: str, min_category_rows: int) -> Preprocessing:
    """Fit all features.

    Args:
        train: The examples of the train split, with the features' columns.
        features: The features, and how numbers are filled and scaled.
        rows: Those of ``train``.
        row_id: The column that identifies a row.
        min_category_rows: Rows that a category needs to get an id of its own.
    Returns:
        The fitted figures; the same input gives the same.
    Raises:
        SourceError: features are null in all rows, or numbers have no logarithm where they need one; the error names all of them.
    """
    problems: list[SparkringError] = []
    numbers: list[tuple[NumberConfig, MomentPart | None]] = [(number, None) for number in features.numeric]
    numbers += [(NumberConfig(column=name), MomentPart(of=moment.column, part=part, wave=wave, time_zone=moment.time_zone))
                for moment in features.moments for name, part, wave in moment.numeric()]
    categorical: _Values = [(name, None) for name in features.categorical] + [
        (name, MomentPart(of=moment.column, part=part, time_zone=moment.time_zone))
        for moment in features.moments for name, part in moment.categorical()]
    fitted_numbers = fit_numbers(train, numbers, rows=rows, row_id=row_id, problems=problems)
    fitted_categories = _fit_categorical(train, categorical, rows, min_category_rows=min_category_rows, problems=problems)
    buckets = _fit_buckets(train, features.buckets, rows, row_id=row_id, problems=problems)
    if problems:
        raise together(problems)
    return Preprocessing(numeric=fitted_numbers, categorical=fitted_categories, buckets=buckets,
                         hashed=tuple(HashFeature(column=each.output, of=each.column, ids=each.ids, seed=each.seed)
                                      for each in features.hashed),
                         train_rows=rows.count)


def _fit_categorical(train: DataFrame, values: _Values, rows: TrainRows, *, min_category_rows: int,
                     problems: list[SparkringError]) -> tuple[CategoricalFeature, ...]:
    if not values:
        return ()
    pairs = train.select(sf.posexplode(sf.array(*(value_of(*value).cast("string") for value in values))).alias("place", "value"))
    counts = pairs.where(sf.col("value").isNotNull()).groupBy("place", "value").agg(sf.count(sf.lit(1)).alias("rows"))
    counts = counts.where(is_valid_utf8("value"))  # in Python, two invalid values could become the same text
    frequent = sf.when(sf.col("rows") >= min_category_rows, sf.struct((-sf.col("rows")).alias("rank"), "value"))
    grouped = counts.groupBy("place").agg(sf.collect_list(frequent).alias("entries"))
    vocabularies = {row["place"]: row["entries"] for row in grouped.collect()}
    empty = [rows.all_null(name) for place, (name, _) in enumerate(values) if place not in vocabularies]
    if empty:
        problems += empty
        return ()
    return tuple(CategoricalFeature(column=name, moment=moment, vocabulary=tuple(entry["value"] for entry in sorted(vocabularies[place])))
                 for place, (name, moment) in enumerate(values))


def _fit_buckets(train: DataFrame, buckets: tuple[BucketConfig, ...], rows: TrainRows, *, row_id: str,
                 problems: list[SparkringError]) -> tuple[BucketFeature, ...]:
    fitted = [bucket for bucket in buckets if bucket.quantiles]
    edges = {bucket.output: bucket.edges or () for bucket in buckets}
    found = quantiles(train, [(bucket.column, _inner_shares(bucket)) for bucket in fitted], rows=rows.count, row_id=row_id)
    for bucket, borders in zip(fitted, found, strict=True):
        if not borders:
            problems.append(rows.all_null(bucket.column))
        edges[bucket.output] = tuple(sorted(set(borders)))
    return tuple(BucketFeature(column=bucket.output, of=bucket.column, edges=edges[bucket.output]) for bucket in buckets)


def _inner_shares(bucket: BucketConfig) -> list[float]:
    """0.25, 0.5 and 0.75 for four buckets."""
    assert bucket.quantiles is not None
    return [number / bucket.quantiles for number in range(1, bucket.quantiles)]
