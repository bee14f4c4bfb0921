"""Shorten long series for drawing: equal bins, their means and extremes, and a weighted moving mean.

A chart is a few hundred pixels wide; a million points in it cost megabytes and show nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

MOST_POINTS = 600
"""Points of a drawn curve: more than the pixels that a chart is wide."""


@dataclass(frozen=True)
class Curve:
    """A line to draw."""

    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Band:
    """The lowest and highest value in each bin; equal to the values themselves if each bin holds one."""

    x: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def bin_means(values: Series, *, most: int = MOST_POINTS) -> Series:
    """Return at most ``most`` means of consecutive, nearly equal bins of ``values`` (n,); ``values`` itself if short enough."""
    sums = np.add.reduceat(values, _starts(len(values), most)) if len(values) else values
    return sums / _widths(len(values), most)


def thin(x: Series, y: Series, *, most: int = MOST_POINTS) -> Curve:
    """Return the means of both coordinates over at most ``most`` bins."""
    return Curve(_plain(bin_means(x, most=most)), _plain(bin_means(y, most=most)))


def envelope(x: Series, y: Series, *, most: int = MOST_POINTS) -> Band:
    """Return the extremes of ``y`` (n,) in each of at most ``most`` bins, so that no spike is averaged away."""
    if not len(y):
        return Band((), (), ())
    starts = _starts(len(y), most)
    return Band(_plain(bin_means(x, most=most)), _plain(np.minimum.reduceat(y, starts)), _plain(np.maximum.reduceat(y, starts)))


def moving_mean(values: Series, *, weights: Series, window: int) -> Series:
    """Return the weighted mean over ``window`` values around each of ``values`` (n,); at both ends over fewer."""
    total, weight = (np.concatenate([[0.0], np.cumsum(series)]) for series in (values * weights, weights))
    here = np.arange(len(values))
    first = np.maximum(here - window // 2, 0)
    last = np.minimum(here + (window - window // 2), len(values))
    means: Series = (total[last] - total[first]) / (weight[last] - weight[first])
    return means


def _starts(length: int, most: int) -> NDArray[np.int64]:
    """First index of each bin."""
    bins = min(length, most)
    return np.arange(bins, dtype=np.int64) * length // max(bins, 1)


def _widths(length: int, most: int) -> NDArray[np.int64]:
    return np.diff(np.append(_starts(length, most), length))


def _plain(values: Series) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
