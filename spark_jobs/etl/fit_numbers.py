"""Fit numbers: the value that replaces a null, and the scale, from train rows only.

Every number gets its mean and deviation, with which drift is measured, and the figures that its filling and scaling
need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from sparkring.conf.schema import NumberConfig
from sparkring.errors import SourceError, SparkringError
from sparkring.pipelines.data.dataset.preprocessing import MomentPart, NumericFeature
from sparkring.pipelines.data.dataset.row_schema import Standardisation
from sparkring.spark_jobs.etl.columns.derive import value_of
from sparkring.spark_jobs.etl.columns.expressions import finite, named
from sparkring.spark_jobs.etl.columns.quantiles import quantiles

_QUARTERS = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class TrainRows:
    """How many rows are fitted on, and for errors which, and how to get others."""

    count: int
    which: str = "the train split"
    others: str = ", or move prepare.split.validation_from"

    def all_null(self, feature: str) -> SourceError:
        """The error about a feature that is null in all of them."""
        return SourceError(f"feature {feature} is null in all {self.count} rows of {self.which}, so nothing can be learned from it; "
                           f"leave it out of prepare.features{self.others}.")


def fit_numbers(train: DataFrame, wanted: Sequence[tuple[NumberConfig, MomentPart | None]], *, rows: TrainRows,
                row_id: str, problems: list[SparkringError]) -> tuple[NumericFeature, ...]:
    """Fit numbers and parts of moments.

    Args:
        train: The examples of the train split, with the columns that the numbers are made of.
        wanted: How each number is filled and scaled, and the part of a moment that it is; None for a column's own
            value.
        rows: Those of ``train``.
        row_id: The column that identifies a row.
        problems: Gets an error for each number that is null in all rows, is too large for a sum, or lacks a logarithm that it needs;
            then nothing is fitted.
    Raises:
        SourceError: a number is too large for a float32.
    """
    if not wanted:
        return ()
    values = sf.array(*(finite(value_of(number.column, moment)) for number, moment in wanted))
    pairs = train.select(sf.posexplode(values).alias("place", "value"))
    figures = {row["place"]: row for row in pairs.groupBy("place").agg(
        sf.count("value").alias("filled"), sf.avg("value").alias("mean"), sf.stddev_pop("value").alias("std"),
        sf.min("value").alias("least"), sf.max("value").alias("most")).collect()}
    found = [problem for place, (number, _) in enumerate(wanted) if (problem := _problem(number, figures[place], rows))]
    if found:
        problems += found
        return ()
    middles = [number.column for number, _ in wanted if number.fill == "median" or number.scale == "robust"]
    found_quarters = quantiles(train, [(column, _QUARTERS) for column in middles], rows=rows.count, row_id=row_id)
    quarters = dict(zip(middles, found_quarters, strict=True))
    return tuple(_fitted(number, moment, figures[place], quarters.get(number.column, []), rows.count)
                 for place, (number, moment) in enumerate(wanted))


def fit_label(train: DataFrame, label: str) -> Standardisation:
    """Fit the mean and the deviation of a label that is a number.

    Both are computed from the middle of its range: far from 0, a sum of labels would lose the digits in which they differ.

    Args:
        train: The examples of the train split.
        label: A column of finite doubles, not all alike.
    Raises:
        SourceError: the labels are too large to have a deviation.
    """
    least, most = train.agg(sf.min(named(label)), sf.max(named(label))).collect()[0]
    half = most / 2 - least / 2
    middle = least + half
    shift, std = train.agg(sf.avg(named(label) - middle), sf.stddev_pop(named(label) - middle)).collect()[0]
    if not math.isfinite(std):
        raise SourceError(f"label {label} has numbers too large to have a deviation: train rows reach from {least:g} to {most:g}; turn "
                          "numbers that mean a missing value into nulls in the query.")
    std = _nine_digits(std) or half  # 0: the squares of numbers below 1e-162
    return Standardisation(mean=middle + round(shift / std, 9) * std, std=std)  # the last digits depend on the order of sums


def _problem(number: NumberConfig, figures: Row, rows: TrainRows) -> SourceError | None:
    if not figures["filled"]:
        return rows.all_null(number.column)
    if not (math.isfinite(figures["mean"]) and math.isfinite(figures["std"])):
        return SourceError(f"feature {number.column} has numbers too large to have a mean and a deviation: train rows reach from "
                           f"{figures['least']:g} to {figures['most']:g}; turn numbers that mean a missing value into nulls in the query.")
    if number.scale == "log1p" and figures["least"] <= -1:
        return SourceError(f"feature {number.column} is scaled by ln(1 + x), which needs numbers above -1, and its smallest train row is "
                           f"{figures['least']:g}; choose another scale, or raise it above -1 in the query.")
    return None


def _fitted(number: NumberConfig, moment: MomentPart | None, figures: Row, quarters: Sequence[float], rows: int) -> NumericFeature:
    """Make the feature from the figures of the train rows.

    Mean and deviation keep nine digits: sums taken in another order differ in the last ones, and the same input must give the
    same dataset. The other figures are values of rows, or lie between two of them.
    """
    mean, std = _mean_and_deviation(figures)
    low, median, high = quarters or (0.0, 0.0, 0.0)
    centre, spread = {"standard": (mean, std), "min_max": (figures["least"], figures["most"] - figures["least"]),
                      "robust": (median, high - low)}.get(number.scale, (0.0, 1.0))
    filled_with = number.fill if isinstance(number.fill, float) else {"mean": mean, "median": median}[number.fill]
    feature = NumericFeature(column=number.column, moment=moment, mean=mean, std=std, nulls=rows - figures["filled"], fill=number.fill_by,
                             filled_with=filled_with, scale=number.scale, centre=centre, spread=spread or 1.0,
                             indicator=number.indicator_column)
    _require_float32(feature, least=figures["least"], most=figures["most"])
    return feature


def _require_float32(feature: NumericFeature, *, least: float, most: float) -> None:
    """Check that all train rows, and the value that replaces nulls, can be encoded."""
    lowest, highest = feature.least_and_most
    beyond = next((value for value in (least, most, feature.filled_with) if not lowest <= value <= highest), None)
    if beyond is not None:
        what = "is filled with" if lowest <= least <= most <= highest else "has a train row of"
        raise SourceError(f"feature {feature.column} {what} {beyond:g}, which scaled by {feature.scale} is beyond the 3.4e38 of a float32; "
                          "choose another scale, or turn numbers that mean a missing value into nulls in the query.")


def _mean_and_deviation(figures: Row) -> tuple[float, float]:
    """The mean and the deviation, to nine digits.

    If the values differ only beyond nine digits, the middle of their range stands for the mean, and half of the range
    for the deviation. So a constant has itself as its mean, to the last digit, and the deviation 1.
    """
    if figures["std"] > 1e-9 * abs(figures["mean"]):
        return _nine_digits(figures["mean"]), _nine_digits(figures["std"])
    half = (figures["most"] - figures["least"]) / 2
    return figures["least"] + half, half or 1.0


def _nine_digits(value: float) -> float:
    return float(f"{value:.9g}")
