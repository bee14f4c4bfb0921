"""The weights of rows in training: figures to check them by. Column expressions only.

Very small and very large weights are refused, since gradients are summed in float32, which could not hold their products and sums.
"""

from __future__ import annotations

from pyspark.sql import Column, Row
from pyspark.sql import functions as sf

from sparkring.errors import SourceError
from sparkring.spark_jobs.etl.columns.expressions import named

LEAST, MOST = 1e-15, 1e15
"""The smallest and the largest weight that is not 0."""


def weight_figures(column: str, *, train: Column) -> list[Column]:
    """Aggregates that ``check_weights`` reads; ``train`` is true for rows of the train split."""
    weight = named(column).cast("double")
    strange = ~((weight == 0) | weight.between(LEAST, MOST))  # Spark orders NaN above all numbers
    return [sf.count_if(weight.isNull()).alias("no_weight"), sf.count_if(strange).alias("strange_weights"),
            sf.min(sf.when(strange, weight)).alias("strange_weight"), sf.count_if(train & (weight > 0)).alias("weighing")]


def check_weights(column: str, found: Row, *, whole: bool) -> None:
    """Check the weights of all rows.

    Args:
        column: Their column.
        found: The row with ``rows`` and the figures of ``weight_figures``.
        whole: Whether the train split must have rows that count; appended rows need not.
    Raises:
        SourceError: a weight is missing, negative or out of range, or all train rows weigh 0.
    """
    rows = found["rows"]
    if found["no_weight"]:
        raise SourceError(f"weight {column} is null in {found['no_weight']} of {rows} rows; fill it in the query, e.g. "
                          f"coalesce({column}, 1), with 0 for rows that do not count.")
    if found["strange_weights"]:
        raise SourceError(f"weight {column} is neither 0 nor from {LEAST:g} to {MOST:g} in {found['strange_weights']} of {rows} rows, e.g. "
                          f"{found['strange_weight']:g}; correct or scale it in the query: only the ratios of weights matter.")
    if whole and not found["weighing"]:
        raise SourceError(f"weight {column} is 0 in all train rows, so there is nothing to learn from; change the query or prepare.split.")
