"""Divide the rows of a split among files and row groups. Pure arithmetic; imports neither pyspark nor pyarrow.

Each row has a key, a hash of its id and the seed; the top bits of the key are its bucket. A file takes a run of buckets:

    bucket     0 1 2 3 4 5 6 7 8 9        (4,096 in all)
    rows       2 1 3 2 1 2 2 1 2 2
    3 files    [-----)[------)[----)      borders at 3 and 7: 6, 7, 5 rows

and orders its rows by key. So the order depends on ids and seed alone, not on Spark, and is as good as random. Files are equal
up to a bucket; row groups are equal but for the last one of a file.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

BUCKET_BITS = 12
NUM_BUCKETS = 1 << BUCKET_BITS
LEAST_GROUP_ROWS = 256
"""Below this a row group costs more to open than to read: ``min_row_groups`` does not cut finer."""


@dataclass(frozen=True)
class FileLayout:
    """Files and row groups of one split."""

    borders: tuple[int, ...]
    """First bucket of each file but the first, ascending: file i takes the buckets from borders[i - 1] to before borders[i]."""
    group_rows: int
    """Rows of a row group."""
    rows: int
    """Rows of the split."""

    @property
    def num_files(self) -> int:
        """Files of the split."""
        return len(self.borders) + 1


def lay_out_files(bucket_rows: Sequence[int], *, num_files: int, row_bytes: int, group_bytes: float, min_groups: int) -> FileLayout:
    """Cut a split into files and row groups.

    Args:
        bucket_rows: Rows of each bucket.
        num_files: Wanted number of files; fewer if there are fewer row groups.
        row_bytes: Decoded bytes of a row.
        group_bytes: Wanted decoded bytes of a row group.
        min_groups: Least number of row groups, as far as each gets ``LEAST_GROUP_ROWS``.
    Returns:
        The layout; each file has at least one row.
    """
    rows = sum(bucket_rows)
    groups = max(math.ceil(rows * row_bytes / group_bytes), min(min_groups, rows // LEAST_GROUP_ROWS), 1)
    files = min(num_files, groups)
    reached = list(accumulate(bucket_rows))
    # File i should end where i/files of the rows are reached. Buckets are whole: on tiny input two ends may fall together.
    borders = sorted({bisect_left(reached, rows * number / files) + 1 for number in range(1, files)})
    borders = [border for border in borders if reached[border - 1] < rows]
    ends = [0, *(reached[border - 1] for border in borders), rows]
    largest = max(end - start for start, end in pairwise(ends))
    return FileLayout(borders=tuple(borders), group_rows=math.ceil(largest / math.ceil(groups / files)), rows=rows)
