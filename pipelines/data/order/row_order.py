"""The exact row order of an epoch: the rows of each step, and the rank of each row.

Pure arithmetic on the row counts of a manifest; reads no file. The order is a function of (dataset version, seed, epoch,
lanes) alone, so it is the same on any number of ranks, threads and machines:

    row groups, permuted by (seed, epoch)   | g7    | g2 | g9     | g0   | g4 ...      N rows in all
    cut into `lanes` runs, equal to a row   |--- lane 0 ---|--- lane 1 ---|--- lane 2  a row group may be cut
    shuffled inside a lane, window by window  [g7'][ g2' ]  a window: a lane's rows of one row group

    stream position p   0    1    2    3    4    5    6 ...     row p // lanes of lane p % lanes
    lane                0    1    2    0    1    2    0
    step 0, batch 4     |----------------|                      positions [kB, min((k + 1) B, N))
    rank of 2           0    1    0    0    1    0    0          lane % ranks

So an epoch reads every row exactly once, and step k holds the same rows, at any number of ranks; no row is padded or
dropped, and (epoch, step) is the whole position of a run. The permutations come from Philox, whose raw stream
NumPy promises to keep (NEP 19), sorted digit by digit: a stable sort has one result, and on 16-bit digits NumPy's is a radix
sort, three times as fast as one of whole words. Never from ``Generator`` methods, whose streams may change.

Source: Philox 4x64-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sparkring.pipelines.data.dataset.sizes import Sizes

MIN_LANES = 24

Int64s = NDArray[np.int64]


def default_lanes(num_ranks: int) -> int:
    """Lanes of a run that starts on ``num_ranks`` ranks: the smallest multiple of that number from ``MIN_LANES`` on."""
    return -(-MIN_LANES // num_ranks) * num_ranks


@dataclass(frozen=True)
class Window:
    """Rows of one row group that one lane reads and shuffles together."""

    lane: int
    first: int
    """Offset in the lane of the window's first row."""
    group: int
    """The row group's number in the manifest's order."""
    start: int
    """First row inside the row group."""
    stop: int
    """One past the last row inside the row group."""

    @property
    def rows(self) -> int:
        """Rows of the window."""
        return self.stop - self.start


@dataclass(frozen=True)
class EpochOrder:
    """The order of one epoch of one split."""

    group_rows: Int64s
    """(groups,) rows of each row group, in the manifest's order."""
    seed: int
    epoch: int
    lanes: int

    @cached_property
    def rows(self) -> int:
        """N, rows of the split."""
        return int(self.group_rows.sum())

    def steps(self, batch_rows: int) -> int:
        """Steps of the epoch at ``batch_rows`` rows a step; the last one may be smaller."""
        return -(-self.rows // batch_rows)

    def step_rows(self, step: int, batch_rows: int) -> int:
        """Rows of ``step`` over all ranks."""
        return min((step + 1) * batch_rows, self.rows) - step * batch_rows

    def owned_lanes(self, rank: int, num_ranks: int) -> range:
        """The lanes that ``rank`` reads."""
        return range(rank, self.lanes, num_ranks)

    def lane_rows(self, lane: int) -> int:
        """Rows of ``lane``: the number of stream positions on it."""
        return _positions_on_lane(self.rows, lane, self.lanes)

    def lane_slice(self, lane: int, step: int, batch_rows: int) -> tuple[int, int]:
        """Offsets [start, stop) in ``lane`` that belong to ``step``."""
        low = min(step * batch_rows, self.rows)
        high = min((step + 1) * batch_rows, self.rows)
        return _positions_on_lane(low, lane, self.lanes), _positions_on_lane(high, lane, self.lanes)

    def rows_of(self, lanes: Iterable[int], step: int, batch_rows: int) -> int:
        """Rows of ``step`` on these lanes."""
        return sum(stop - start for start, stop in (self.lane_slice(lane, step, batch_rows) for lane in lanes))

    def windows(self, lane: int, offset: int = 0) -> Iterator[Window]:
        """Windows of ``lane``, starting with the one that holds ``offset``, which is found by bisection."""
        begin = lane * (self.rows // self.lanes) + min(lane, self.rows % self.lanes)
        end = begin + self.lane_rows(lane)
        position = begin + offset
        place = int(np.searchsorted(self._bounds, position, side="right")) - 1
        while position < end:
            group_begin, group_end = int(self._bounds[place]), int(self._bounds[place + 1])
            first, last = max(group_begin, begin), min(group_end, end)
            if last > first:  # an empty row group makes no window
                yield Window(lane, first - begin, int(self._permuted[place]), first - group_begin, last - group_begin)
            position = max(position, last)
            place += 1

    def shuffle(self, window: Window) -> Int64s:
        """(window rows,) the permutation of ``window``: row i of the lane's stream is row ``shuffle[i]`` of the
        window.
        """
        return permutation(window.rows, key=(self.seed, self.epoch, window.lane, window.first))

    def needed_at(self, window: Window, batch_rows: int) -> int:
        """The first step that takes a row of ``window``."""
        return (window.first * self.lanes + window.lane) // batch_rows

    @cached_property
    def _permuted(self) -> Int64s:
        """(groups,) manifest numbers of the row groups in this epoch's order."""
        return permutation(len(self.group_rows), key=(self.seed, self.epoch))

    @cached_property
    def _bounds(self) -> Int64s:
        """(groups + 1,) first row of each row group in this epoch's order, and the end."""
        bounds = np.zeros(len(self.group_rows) + 1, dtype=np.int64)
        np.cumsum(self.group_rows[self._permuted], out=bounds[1:])
        return bounds


def permutation(size: int, *, key: Sequence[int]) -> Int64s:
    """A permutation of ``range(size)`` that depends on ``key`` alone: equal on every machine and NumPy release.

    Indices are sorted by 32 random bits each; of two with equal bits (one pair in 2**32) the lower comes first.

    Args:
        size: Fewer than 2**31 items.
        key: Integers of 64 bits.
    Returns:
        (size,) int64.
    """
    digest = hashlib.blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=16).digest()
    words = np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(-(-size // 2)).astype("<u8", copy=False)
    digits = words.view("<u2").reshape(-1, 2)[:size]
    by_low = np.argsort(digits[:, 0], kind="stable")
    order: Int64s = by_low[np.argsort(digits[:, 1][by_low], kind="stable")]
    return order


def group_rows(row_groups: Sequence[Sequence[int]]) -> Int64s:
    """(groups,) row counts of all row groups, from the manifest's lists of each file."""
    counts = [groups.array if isinstance(groups, Sizes) else np.asarray(groups, dtype=np.int64) for groups in row_groups]
    return np.concatenate([np.empty(0, dtype=np.int64), *counts])


def _positions_on_lane(position: int, lane: int, lanes: int) -> int:
    """Number of stream positions in 0 .. position - 1 that fall on ``lane``."""
    return max(0, -(-(position - lane) // lanes))
