"""Permutation importance: how much worse a model gets when a feature's values are dealt to other rows. Pure, given the network.

What is made of one column of the source moves together: a number, the column that marks its nulls, its ranges; the sine and cosine of one
part of a moment. Each feature's values are permuted once; the losses of so many rows give the rise an interval. Features that tell the
same share their importance: each looks less important than both together.
Source: Breiman, "Random Forests", Machine Learning 45 (2001), section 10; Fisher, Rudin and Dominici, JMLR 20 (2019), 177.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, CategoricalFeature, HashFeature, NumericFeature, Preprocessing
from sparkring.spark_jobs.explaining.documents import Importance, Rise
from sparkring.spark_jobs.explaining.network import Values
from sparkring.spark_jobs.explaining.sample import Rows

MOST_ROWS = 20_000
MOST_PREDICTED = 500_000
"""Rows that go through the network for all features together."""
MOST_MULTIPLIED, LEAST_ROWS = 10**11, 2_000
"""Multiplications in which they do, 1 to 2 seconds on two cores; a large network predicts fewer rows, but so many in any case."""
Z = 1.959964
"""The normal distribution's 97.5 % quantile."""


Feature = NumericFeature | CategoricalFeature | BucketFeature | HashFeature


class Moved(NamedTuple):
    """The columns that move together."""

    numeric: list[int]
    ids: list[int]


def permute_features(rows: Rows, fitted: Preprocessing, losses: Callable[[Rows], Values], *, multiplied: int = 1,
                     seed: int = 0) -> Importance:
    """Permute each feature in turn.

    Args:
        rows: Held-out rows in no order; the first of them are used.
        fitted: Their features.
        losses: Predicts rows and gives their losses, (rows,).
        multiplied: How often it multiplies for a row.
        seed: Of the permutations.
    """
    moved, random = moved_together(fitted), np.random.default_rng(seed)
    times = len(moved) + 1
    used = rows[:min(MOST_ROWS, max(1, MOST_PREDICTED // times), max(LEAST_ROWS, MOST_MULTIPLIED // (times * multiplied)))]
    own = losses(used)
    rises = [_rise(name, losses(_permuted(used, columns, random.permutation(len(used)))) - own) for name, columns in moved.items()]
    return Importance(rows=len(used), loss=float(own.mean()), features=tuple(sorted(rises, key=lambda each: -each.rise)))


def moved_together(fitted: Preprocessing) -> dict[str, Moved]:
    """The columns of each feature, by its name, in the order of the features."""
    numeric, ids = ({name: place for place, name in enumerate(names)}
                    for names in (fitted.numeric_columns, [feature.column for feature in fitted.with_ids]))
    moved: dict[str, Moved] = {}
    for number in fitted.numeric:
        columns = [number.column, *([number.indicator] if number.indicator else [])]
        moved.setdefault(_name(number), Moved([], [])).numeric.extend(numeric[column] for column in columns)
    for feature in fitted.with_ids:
        moved.setdefault(_name(feature), Moved([], [])).ids.append(ids[feature.column])
    return moved


def _name(feature: Feature) -> str:
    moment = feature.moment if isinstance(feature, NumericFeature | CategoricalFeature) else None
    return feature.source if moment is None else f"{moment.part.replace('_', ' ')} of {feature.source}"


def _permuted(rows: Rows, moved: Moved, order: NDArray[np.int64]) -> Rows:
    numeric, ids = rows.numeric.copy(), rows.ids.copy()
    numeric[:, moved.numeric] = rows.numeric[:, moved.numeric][order]
    ids[:, moved.ids] = rows.ids[:, moved.ids][order]
    return Rows(numeric, ids, rows.labels)


def _rise(name: str, differences: Values) -> Rise:
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return Rise(feature=name, rise=mean, low=mean - Z * error, high=mean + Z * error)
