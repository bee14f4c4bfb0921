"""Fit the preprocessing: means, deviations, vocabularies and quantiles, from train rows only, in one pass for each kind of feature.

All columns of a kind are folded into (position, value) pairs and grouped by position: one small aggregation, where an
aggregate for each column would grow into code that the JVM no longer compiles (measured: 8.0 against 3.8 s of CPU for
31 columns in a fresh session).
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.conf.schema import BucketConfig, FeaturesConfig
from sparkring.errors import SourceError
from sparkring.pipelines.data.preprocessing import BucketFeature, CategoricalFeature, HashFeature, MomentPart, NumericFeature, Preprocessing
from sparkring.spark_jobs.etl.columns import finite, named, seeded_hash
from sparkring.spark_jobs.etl.derive import value_of

_Values = list[tuple[str, MomentPart | None]]
"""Name of a feature, and how its value is made."""
_SAMPLE_ROWS = 1_000_000
"""Train rows that quantiles are taken from, about; Spark's exact ones keep each different value in memory."""
_SAMPLE_SEED = 1


def fit(train: DataFrame, features: FeaturesConfig, *, rows: int, row_id: str, min_category_rows: int) -> Preprocessing:
    """Fit all features.

    Args:
        train: The examples of the train split, with the features' columns.
        features: Which columns are what.
        rows: Rows of ``train``.
        row_id: The column that tells its rows apart.
        min_category_rows: Rows that a category needs to get an id of its own.
    Returns:
        The fitted figures. Means and deviations keep nine digits: sums taken in another order differ in the last ones,
        and the same input must give the same dataset.
    Raises:
        SourceError: a feature is null in all rows.
    """
    numeric: _Values = [(name, None) for name in features.numeric] + [
        (name, MomentPart(of=moment.column, part=part, wave=wave, time_zone=moment.time_zone))
        for moment in features.moments for name, part, wave in moment.numeric()]
    categorical: _Values = [(name, None) for name in features.categorical] + [
        (name, MomentPart(of=moment.column, part=part, time_zone=moment.time_zone))
        for moment in features.moments for name, part in moment.categorical()]
    return Preprocessing(numeric=_fit_numeric(train, numeric, rows),
                         categorical=_fit_categorical(train, categorical, rows, min_category_rows=min_category_rows),
                         buckets=_fit_buckets(train, features.buckets, rows, row_id=row_id),
                         hashed=tuple(HashFeature(column=each.output, of=each.column, ids=each.ids, seed=each.seed)
                                      for each in features.hashed),
                         train_rows=rows)


def _fit_numeric(train: DataFrame, values: _Values, rows: int) -> tuple[NumericFeature, ...]:
    if not values:
        return ()
    pairs = train.select(sf.posexplode(sf.array(*(finite(value_of(*value)) for value in values))).alias("place", "value"))
    figures = {row["place"]: row for row in pairs.groupBy("place").agg(
        sf.count("value").alias("filled"), sf.avg("value").alias("mean"), sf.stddev_pop("value").alias("std")).collect()}
    for place, (name, _) in enumerate(values):
        _require_values(name, figures[place]["filled"], rows)
    return tuple(
        NumericFeature(column=name, moment=moment, mean=_nine_digits(figures[place]["mean"]), nulls=rows - figures[place]["filled"],
                       std=_spread(figures[place]["mean"], figures[place]["std"])) for place, (name, moment) in enumerate(values))


def _fit_categorical(train: DataFrame, values: _Values, rows: int, *, min_category_rows: int) -> tuple[CategoricalFeature, ...]:
    if not values:
        return ()
    pairs = train.select(sf.posexplode(sf.array(*(value_of(*value).cast("string") for value in values))).alias("place", "value"))
    counts = pairs.where(sf.col("value").isNotNull()).groupBy("place", "value").agg(sf.count(sf.lit(1)).alias("rows"))
    frequent = sf.when(sf.col("rows") >= min_category_rows, sf.struct((-sf.col("rows")).alias("rank"), "value"))
    grouped = counts.groupBy("place").agg(sf.collect_list(frequent).alias("entries"))
    vocabularies = {row["place"]: row["entries"] for row in grouped.collect()}
    for place, (name, _) in enumerate(values):
        _require_values(name, place in vocabularies, rows)
    return tuple(CategoricalFeature(column=name, moment=moment, vocabulary=tuple(entry["value"] for entry in sorted(vocabularies[place])))
                 for place, (name, moment) in enumerate(values))


def _fit_buckets(train: DataFrame, buckets: tuple[BucketConfig, ...], rows: int, *, row_id: str) -> tuple[BucketFeature, ...]:
    """Exact quantiles of the train rows, or of a sample that depends on nothing but their ids."""
    if not buckets:
        return ()
    fitted = [bucket for bucket in buckets if bucket.quantiles]
    edges = {bucket.output: bucket.edges or () for bucket in buckets}
    if fitted:
        place = sf.shiftrightunsigned(seeded_hash(named(row_id), _SAMPLE_SEED), 11).cast("double") / sf.lit(2.0**53)
        sample = train.where(place < _SAMPLE_ROWS / rows) if rows > _SAMPLE_ROWS else train
        found = sample.agg(*(sf.percentile(finite(named(bucket.column)), _inner_shares(bucket)) for bucket in fitted)).collect()[0]
        for bucket, quantiles in zip(fitted, found, strict=True):
            _require_values(bucket.column, quantiles is not None, rows)
            edges[bucket.output] = tuple(sorted(set(quantiles)))
    return tuple(BucketFeature(column=bucket.output, of=bucket.column, edges=edges[bucket.output]) for bucket in buckets)


def _inner_shares(bucket: BucketConfig) -> list[float]:
    """0.25, 0.5 and 0.75 for four buckets."""
    assert bucket.quantiles is not None
    return [number / bucket.quantiles for number in range(1, bucket.quantiles)]


def _require_values(name: str, filled: int, rows: int) -> None:
    if not filled:
        raise SourceError(f"feature {name} is null in all {rows} rows of the train split, so nothing can be learned from it; "
                          "leave it out of prepare.features, or move prepare.split.validation_from.")


def _spread(mean: float, std: float) -> float:
    """The deviation, or 1 for a column that is constant up to rounding."""
    return _nine_digits(std) if std > 1e-9 * abs(mean) else 1.0


def _nine_digits(value: float) -> float:
    return float(f"{value:.9g}")
