"""Lines through measurements: least squares on the medians of repetitions. Pure.

Medians, because a rank that was delayed once says nothing about the link. Residuals are relative to the measurement, so
microseconds at small sizes count as much as seconds at large ones. No coefficient is negative.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from sparkring.errors import ConfigError
from sparkring.pipelines.parallel.planner.cost_model import Line, SumCost

Samples = Mapping[int, Sequence[float]]
"""Seconds of each repetition, by amount (rows or bytes)."""


def fit_line(samples: Samples) -> Line:
    """The line through the medians.

    Args:
        samples: Seconds, all above zero, by amount.
    Raises:
        ConfigError: there are fewer than two amounts.
    """
    if len(samples) < 2:
        raise ConfigError(f"a line needs measurements of at least two amounts of rows or bytes, found {len(samples)}; measure more.")
    return Line(*_least_squares((1.0, amount, statistics.median(seconds)) for amount, seconds in samples.items()))


def fit_sum(by_group: Mapping[int, Samples]) -> SumCost:
    """The cost of sums: a line for each size of group that was measured, and a ring's step for all others.

    Args:
        by_group: Seconds by bytes, by members of the group (2 or more).
    """
    step = _least_squares((2.0 * (group - 1), 2.0 * (group - 1) / group * amount, statistics.median(seconds))
                          for group, samples in by_group.items() for amount, seconds in samples.items())
    return SumCost(step=Line(*step), measured={group: fit_line(samples) for group, samples in by_group.items()})


def _least_squares(points: Iterable[tuple[float, float, float]]) -> tuple[float, float]:
    """a, b >= 0 with a x + b y nearest to z over the points (x, y, z), each weighted by 1 / z."""
    rows = [(x / z, y / z) for x, y, z in points]
    xx, xy, yy = (sum(row[one] * row[other] for row in rows) for one, other in ((0, 0), (0, 1), (1, 1)))
    x1, y1 = (sum(row[place] for row in rows) for place in (0, 1))
    determinant = xx * yy - xy * xy
    if determinant > 1e-12 * xx * yy:
        a, b = (x1 * yy - y1 * xy) / determinant, (y1 * xx - x1 * xy) / determinant
        if a >= 0 and b >= 0:
            return a, b
    only_x = (x1 / xx, 0.0) if xx else (0.0, 0.0)
    only_y = (0.0, y1 / yy) if yy else (0.0, 0.0)
    return min((only_x, only_y), key=lambda pair: sum((pair[0] * x + pair[1] * y - 1) ** 2 for x, y in rows))
