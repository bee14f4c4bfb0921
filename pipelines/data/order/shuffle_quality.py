"""How well the row order mixes: whether rows change ranks between epochs, and whether neighbouring rows are correlated.

    owner change       share of the rows that another rank reads in the next epoch; chance gives 1 - 1/W, one fixed shard per
                       rank gives 0 with any seed
    lag-1 correlation  of the labels of consecutive rows in the stream; chance gives 0, a dataset sorted by label and read in
                       file order gives nearly 1

Pure: row orders and labels in, numbers out. The owner change needs only the borders of windows and no row, so its time
grows with the number of row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from sparkring.pipelines.data.order.row_order import EpochOrder, Int64s, Window

Floats = NDArray[np.float64]
ReadLabels = Callable[[Window], Floats]
"""The labels of a window's rows, in the order of the lane's stream."""


def owner_change(one: EpochOrder, other: EpochOrder, *, num_ranks: int) -> float:
    """Share of the rows that different ranks read in ``one`` and ``other``.

    Args:
        one: The order of an epoch.
        other: The order of another epoch of the same row groups.
        num_ranks: Ranks of both.
    Returns:
        From 0 (each rank keeps its rows) to 1; 0 if there are no rows.
    """
    if one.rows == 0:
        return 0.0
    (begins_one, lanes_one), (begins_other, lanes_other) = _owners(one), _owners(other)
    begins = np.union1d(begins_one, begins_other)
    rows = np.diff(begins, append=one.rows)
    owner_one = lanes_one[np.searchsorted(begins_one, begins, side="right") - 1] % num_ranks
    owner_other = lanes_other[np.searchsorted(begins_other, begins, side="right") - 1] % num_ranks
    return float(rows[owner_one != owner_other].sum() / one.rows)


def stream_labels(order: EpochOrder, read: ReadLabels, *, most_rows: int) -> Floats:
    """The labels of the first rows of the stream, in the order of training.

    Args:
        order: The order of the epoch.
        read: Reads the labels of one window.
        most_rows: Number of rows, rounded up to one row of each lane.
    Returns:
        (rows,) labels at stream positions 0, 1, 2...
    """
    depth = -(-min(most_rows, order.rows) // order.lanes)
    stream = np.zeros((depth, order.lanes))
    for lane in range(order.lanes):
        labels = np.concatenate([np.empty(0), *_lane_labels(order, lane, read, rows=depth)])[:depth]
        stream[:len(labels), lane] = labels  # row i of lane l is at position i * lanes + l
    return stream.reshape(-1)[:order.rows]


def lag1_correlation(labels: Floats) -> float:
    """Pearson's correlation of each value with the next; 0 if all are equal or there are fewer than 3."""
    if len(labels) < 3:
        return 0.0
    first, second = labels[:-1] - labels[:-1].mean(), labels[1:] - labels[1:].mean()
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / scale if scale > 0 else 0.0


def _lane_labels(order: EpochOrder, lane: int, read: ReadLabels, *, rows: int) -> Iterator[Floats]:
    for window in order.windows(lane):
        if window.first >= rows:
            return
        yield read(window)


def _owners(order: EpochOrder) -> tuple[Int64s, Int64s]:
    """First row of each window in the manifest's order, ascending, and the lane that reads it."""
    group_begins = np.concatenate([[0], np.cumsum(order.group_rows)])
    windows = [window for lane in range(order.lanes) for window in order.windows(lane)]
    begins = np.array([group_begins[window.group] + window.start for window in windows], dtype=np.int64)
    place = np.argsort(begins)
    return begins[place], np.array([window.lane for window in windows], dtype=np.int64)[place]
