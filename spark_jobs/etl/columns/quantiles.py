"""Quantiles of train rows: what borders of buckets, medians and quartiles are taken from.

Exact up to a million rows. Beyond, they are the exact ones of about a million that are chosen by the hash of their ids, so that
the same input gives the same dataset however its rows lie: the share of all rows below such a quantile q has a standard
deviation of ``sqrt(q (1 - q) / 1e6)``, 0.05 % at the median. Spark's ``approxQuantile`` has a bound instead, but its answer
depends on the partitions.

Source: Cochran, "Sampling Techniques", Wiley 1977, section 3.2, of a share in a random sample.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.spark_jobs.etl.columns.expressions import finite, named, seeded_hash

SAMPLE_ROWS = 1_000_000
_AT_ONCE = 8
"""Columns of a pass: Spark's exact quantiles keep each different value of each in memory, some 50 bytes a value."""
_SEED = 1


def quantiles(train: DataFrame, wanted: Sequence[tuple[str, Sequence[float]]], *, rows: int, row_id: str) -> list[list[float]]:
    """Take quantiles of several columns.

    Args:
        train: The rows.
        wanted: Column and shares, each between 0 and 1; a column may come more than once.
        rows: Rows of ``train``.
        row_id: The column that tells its rows apart.
    Returns:
        For each of ``wanted`` the values below which these shares of the finite ones lie, linear between two rows; none where
        there is no finite value.
    """
    place = sf.shiftrightunsigned(seeded_hash(named(row_id), _SEED), 11).cast("double") / sf.lit(2.0**53)
    sample = train.where(place < SAMPLE_ROWS / rows) if rows > SAMPLE_ROWS else train
    found: list[list[float]] = []
    for first in range(0, len(wanted), _AT_ONCE):
        figures = (sf.percentile(finite(named(column)), list(shares)) for column, shares in wanted[first:first + _AT_ONCE])
        found += [list(values or ()) for values in sample.agg(*figures).collect()[0]]
    return found
