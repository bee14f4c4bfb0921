"""From the columns that files hold to those that a network takes, where the two differ: in a version in folds.

Each round of a cross-validation encodes rows by figures of its own, fitted without the fold that validates. So such a version stores

    a number          as the source has it, in float64, null included        scaled and filled as rows are read
    a category        its place in the vocabulary of all folds               numbered as in the vocabulary of the rows that train
    a bucket          the range between two borders of any fold              the range of this fold's borders that it lies in

A value that is frequent among the rows that train is frequent among all rows, and a range between borders of any fold lies in one range of
each fold. So nothing is lost: the result is what ``prepare`` would store for these train rows alone. All else is stored as always.

NumPy only; no files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, CategoricalFeature, NumericFeature, Preprocessing

Numbers = NDArray[np.float64]
"""One number a row; NaN is null."""
Change = Callable[[NDArray[Any]], NDArray[Any]]
"""A stored column -> the column that a network takes, both (rows,)."""


def changes(stored: Preprocessing | None, fitted: Preprocessing) -> dict[str, Change]:
    """What to do to stored columns, by their names; columns without a name here are as the network takes them.

    Args:
        stored: How the files hold features; None if as the network takes them.
        fitted: How the network takes them.
    """
    if stored is None:
        return {}
    found: dict[str, Change] = {feature.column: Scaling(feature) for feature in fitted.numeric}
    for held, feature in zip(stored.categorical, fitted.categorical, strict=True):
        found[feature.column] = Renumbering(_of_vocabulary(held, feature))
    for ranges, bucket in zip(stored.buckets, fitted.buckets, strict=True):
        found[bucket.column] = Renumbering(_of_borders(ranges, bucket))
    return found


def changed_columns(columns: Mapping[str, NDArray[Any]], doing: Mapping[str, Change]) -> dict[str, NDArray[Any]]:
    """Columns with their changes made."""
    return {name: doing[name](values) if name in doing else values for name, values in columns.items()}


@dataclass(frozen=True)
class Scaling:
    """Fills and scales a number."""

    feature: NumericFeature

    def __call__(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """(rows,) float64 with NaN for null -> (rows,) float32."""
        return scaled(usable(values.astype(np.float64, copy=False), self.feature), self.feature).astype(np.float32)


@dataclass(frozen=True)
class Renumbering:
    """Exchanges ids."""

    ids: NDArray[np.int32]
    """By stored id."""

    def __call__(self, values: NDArray[Any]) -> NDArray[np.int32]:
        """(rows,) of ids."""
        renumbered: NDArray[np.int32] = self.ids[values]
        return renumbered


def usable(value: Numbers, feature: NumericFeature) -> Numbers:
    """The value before it is filled: null where it, its encoding, or the logarithm that the scale takes is not finite."""
    least, most = feature.least_and_most
    return np.where((value >= least) & (value <= most) & ((value > -1) | (feature.scale != "log1p")), value, np.nan)


def scaled(number: Numbers, feature: NumericFeature) -> Numbers:
    """(x - centre) / spread; a missing x is filled in first."""
    filled = np.where(np.isnan(number), feature.filled_with, number)
    x = np.log1p(filled) if feature.scale == "log1p" else filled
    return (x - feature.centre) / feature.spread


def _of_vocabulary(stored: CategoricalFeature, fitted: CategoricalFeature) -> NDArray[np.int32]:
    ids = {value: place for place, value in enumerate(fitted.vocabulary, start=1)}
    return np.array([0, *(ids.get(value, 0) for value in stored.vocabulary)], np.int32)


def _of_borders(stored: BucketFeature, fitted: BucketFeature) -> NDArray[np.int32]:
    """A stored range begins at a border of ``stored``; the first one begins nowhere."""
    return np.array([0, 1, *(1 + np.searchsorted(fitted.edges, stored.edges, side="right"))], np.int32)
