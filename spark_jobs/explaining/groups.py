"""Which rows share a value of a feature. Pure.

    categories        by their value; null, rare and new ones together
    ranges            as the config or the fit cut them
    numbers           by value if there are at most five, else in quintiles; nulls apart where a feature marks them
    not cut           hashed values, whose text nobody keeps, and waves (the sine of an hour)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sparkring.pipelines.data.dataset.preprocessing import NumericFeature, Preprocessing
from sparkring.spark_jobs.explaining.sample import Rows

PARTS = 5
"""Of a number's values; each has an equal share of the rows."""
NULL, OTHER = "null", "null, rare or new"


@dataclass(frozen=True)
class Grouping:
    """The groups of one feature."""

    feature: str
    places: NDArray[np.int64]
    """(rows,): each row's group."""
    names: Sequence[str]
    """Of each group."""


def groupings(fitted: Preprocessing, rows: Rows) -> Iterator[Grouping]:
    """The groups of each feature that can be cut.

    Args:
        fitted: The features.
        rows: Encoded rows.
    """
    numbers = {name: rows.numeric[:, place] for place, name in enumerate(fitted.numeric_columns)}
    ids = {feature.column: rows.ids[:, place] for place, feature in enumerate(fitted.with_ids)}
    for category in fitted.categorical:
        yield Grouping(category.column, ids[category.column], [OTHER, *category.vocabulary])
    for bucket in fitted.buckets:
        yield Grouping(bucket.column, ids[bucket.column], [NULL, *_ranges(bucket.edges)])
    for number in fitted.numeric:
        if number.moment is None or number.moment.wave is None:
            yield _of_number(number, numbers)


def _of_number(feature: NumericFeature, numbers: dict[str, NDArray[np.float32]]) -> Grouping:
    values = numbers[feature.column].astype(np.float64)
    missing = numbers[feature.indicator] == 1 if feature.indicator else np.zeros(len(values), bool)
    found = np.unique(values[~missing])
    if len(found) <= PARTS:
        places, names = np.searchsorted(found, values), [_text(feature, value) for value in found]
    else:
        edges = np.unique(np.quantile(values[~missing], np.arange(1, PARTS) / PARTS))
        places, names = np.searchsorted(edges, values, side="right"), _ranges([float(_text(feature, edge)) for edge in edges])
    return Grouping(feature.column, np.where(missing, len(names), places), [*names, NULL])


def _text(feature: NumericFeature, encoded: float) -> str:
    """An encoded value in the source's units."""
    x = encoded * feature.spread + feature.centre
    return f"{np.expm1(x) if feature.scale == 'log1p' else x:.4g}"


def _ranges(edges: Sequence[float]) -> list[str]:
    """The range below the first edge, those between two, and the one from the last on."""
    if not len(edges):
        return ["any"]
    texts = [f"{edge:.4g}" for edge in edges]
    return [f"below {texts[0]}", *(f"{low} to {high}" for low, high in pairwise(texts)), f"from {texts[-1]}"]
