"""Dealing rows to files and row groups: nothing lost, nearly equal, never finer than asked."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sparkring.spark_jobs.etl.writing.file_layout import LEAST_GROUP_ROWS, NUM_BUCKETS, FileLayout, lay_out_files

DRAWN = [2, 1, 3, 2, 1, 2, 2, 1, 2, 2]


def _file_rows(bucket_rows: list[int], layout: FileLayout) -> list[int]:
    ends = [0, *layout.borders, len(bucket_rows)]
    return [sum(bucket_rows[start:end]) for start, end in pairwise(ends)]


def _lay_out(bucket_rows: list[int], *, num_files: int = 3, group_bytes: float = 40, min_groups: int = 1) -> FileLayout:
    return lay_out_files(bucket_rows, num_files=num_files, row_bytes=10, group_bytes=group_bytes, min_groups=min_groups)


def test_files_take_runs_of_buckets_as_drawn_in_the_module() -> None:
    layout = _lay_out(DRAWN)
    assert layout.borders == (3, 7)
    assert _file_rows(DRAWN, layout) == [6, 7, 5]


def test_row_groups_are_as_large_as_the_bytes_allow() -> None:
    # 18 rows of 10 bytes in groups of at most 40 bytes: 5 groups, so 2 a file, and 7 rows of the largest file make 4 + 3.
    assert _lay_out(DRAWN).group_rows == 4


def test_a_real_split_has_all_its_row_groups_nearly_equal() -> None:
    rows = [7] * NUM_BUCKETS
    layout = lay_out_files(rows, num_files=4, row_bytes=200, group_bytes=16e6, min_groups=96)
    assert _file_rows(rows, layout) == [7 * NUM_BUCKETS // 4] * 4
    assert 96 * layout.group_rows >= sum(rows) > 95 * layout.group_rows


def test_few_rows_are_not_cut_finer_than_is_worth_it() -> None:
    layout = lay_out_files([1] * 1000, num_files=4, row_bytes=200, group_bytes=16e6, min_groups=96)
    assert (layout.num_files, layout.group_rows) == (3, 334)
    layout = lay_out_files([1] * 100, num_files=4, row_bytes=200, group_bytes=16e6, min_groups=96)
    assert layout == FileLayout(borders=(), group_rows=100, rows=100)


@given(st.lists(st.integers(min_value=0, max_value=40), min_size=1, max_size=200).filter(any),
       st.integers(min_value=1, max_value=8), st.integers(min_value=1, max_value=50))
def test_every_file_has_a_row_and_every_row_a_file(bucket_rows: list[int], num_files: int, min_groups: int) -> None:
    layout = _lay_out(bucket_rows, num_files=num_files, group_bytes=400, min_groups=min_groups)
    files = _file_rows(bucket_rows, layout)
    assert len(files) == layout.num_files <= num_files
    assert sum(files) == sum(bucket_rows)
    assert min(files) > 0
    assert layout.group_rows <= max(40, LEAST_GROUP_ROWS * 2)
