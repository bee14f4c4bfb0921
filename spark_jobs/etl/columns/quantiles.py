"""Quantiles of train rows, for borders of buckets, medians and quartiles.

They are exact up to a million rows. Of more rows, they are the quantiles of about a million, chosen by a hash of their
ids, so the same rows give the same dataset in any order. The share of all rows below such a quantile q has a standard
deviation of ``sqrt(q (1 - q) / 1e6)``, 0.05 % at the median. Spark's ``approxQuantile`` has a bound, but its result
depends on partitions.

Source: Cochran, "Sampling Techniques", Wiley 1977, section 3.2, of a share in a random sample.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.spark_jobs.etl.columns.expressions import finite, named, seeded_hash

SAMPLE_ROWS = 1_000_000
_AT_ONCE = 8
"""Columns of one pass: Spark's exact quantiles keep each column's distinct values in memory, about 50 bytes each."""
_SEED = 1


def quantiles(train: DataFrame, wanted: Sequence[tuple[str, Sequence[float]]], *, rows: int, row_id: str) -> list[list[float]]:
    """Compute quantiles of several columns.

    Args:
        train: The rows.
        wanted: Column and shares, each between 0 and 1; a column may come more than once.
        rows: Rows of ``train``.
        row_id: The column that identifies a row.
    Returns:
        For each of ``wanted`` the quantiles of its finite values, linear between two rows; an empty list if there is
        none.
    """
    place = sf.shiftrightunsigned(seeded_hash(named(row_id), _SEED), 11).cast("double") / sf.lit(2.0**53)
    sample = train.where(place < SAMPLE_ROWS / rows) if rows > SAMPLE_ROWS else train
    found: list[list[float]] = []
    for first in range(0, len(wanted), _AT_ONCE):
        figures = (sf.percentile(finite(named(column)), list(shares)) for column, shares in wanted[first:first + _AT_ONCE])
        found += [list(values or ()) for values in sample.agg(*figures).collect()[0]]
    return found
