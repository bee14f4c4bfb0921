"""The pure row order: exact at any number of ranks, shuffled anew each epoch, and cheap at a billion rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkring.pipelines.data.order.row_order import EpochOrder, Int64s, default_lanes, group_rows, permutation

Groups = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def _order(groups: list[int], *, lanes: int, seed: int = 1, epoch: int = 0) -> EpochOrder:
    return EpochOrder(np.array(groups, dtype=np.int64), seed, epoch, lanes)


def _lane_stream(order: EpochOrder, lane: int) -> Int64s:
    """Global row numbers of a lane, in order."""
    starts = np.concatenate([[0], np.cumsum(order.group_rows)])
    parts = [starts[window.group] + window.start + order.shuffle(window) for window in order.windows(lane)]
    return np.concatenate([*parts, np.empty(0, dtype=np.int64)])


def _steps(order: EpochOrder, *, num_ranks: int, batch_rows: int) -> list[list[list[int]]]:
    """Row numbers by step and rank."""
    streams = [_lane_stream(order, lane) for lane in range(order.lanes)]


    def rows(step: int, rank: int) -> list[int]:
        slices = {lane: slice(*order.lane_slice(lane, step, batch_rows)) for lane in order.owned_lanes(rank, num_ranks)}
        return [int(row) for lane, part in slices.items() for row in streams[lane][part]]

    return [[rows(step, rank) for rank in range(num_ranks)] for step in range(order.steps(batch_rows))]


def test_lanes_are_dealt_out_like_cards() -> None:
    #   rows     0 .. 9 in one group, 3 lanes:   lane 0 owns 4 rows, lanes 1 and 2 three each
    #   stream   p   0 1 2 | 3 4 5 | 6 7 8 | 9   batches of 4:  {0 1 2 3} {4 5 6 7} {8 9}
    #   lane         0 1 2   0 1 2   0 1 2   0
    order = _order([10], lanes=3)
    assert [order.lane_rows(lane) for lane in range(3)] == [4, 3, 3]
    assert [[order.lane_slice(lane, step, 4) for lane in range(3)] for step in range(3)] == [
        [(0, 2), (0, 1), (0, 1)],
        [(2, 3), (1, 3), (1, 2)],
        [(3, 4), (3, 3), (2, 3)]]
    windows = [window for lane in range(3) for window in order.windows(lane)]
    assert [(window.first, window.start, window.stop) for window in windows] == [(0, 0, 4), (0, 4, 7), (0, 7, 10)]


@settings(max_examples=60)
@given(groups=Groups, lanes=st.integers(1, 30), batch_rows=st.integers(1, 50), num_ranks=st.integers(1, 13), epoch=st.integers(0, 5))
def test_every_row_comes_once_and_the_steps_hold_the_same_rows_at_any_world_size(
        groups: list[int], lanes: int, batch_rows: int, num_ranks: int, epoch: int) -> None:
    order = _order(groups, lanes=lanes, epoch=epoch)
    alone = [sorted(step[0]) for step in _steps(order, num_ranks=1, batch_rows=batch_rows)]
    shared = [sorted(row for rank in step for row in rank) for step in _steps(order, num_ranks=num_ranks, batch_rows=batch_rows)]
    assert shared == alone
    assert sorted(row for step in alone for row in step) == list(range(sum(groups)))
    assert [len(step) for step in alone] == [order.step_rows(step, batch_rows) for step in range(len(alone))]


@settings(max_examples=60)
@given(groups=Groups, lanes=st.integers(1, 30), lane=st.integers(0, 29), share=st.floats(0, 1))
def test_windows_from_an_offset_are_the_rest_of_all_windows(groups: list[int], lanes: int, lane: int, share: float) -> None:
    order = _order(groups, lanes=lanes)
    lane %= lanes
    offset = int(share * order.lane_rows(lane))
    rest = [window for window in order.windows(lane) if window.first + window.rows > offset]
    assert list(order.windows(lane, offset)) == rest


@settings(max_examples=60)
@given(groups=Groups, lanes=st.integers(1, 30), batch_rows=st.integers(1, 50))
def test_a_window_is_needed_at_the_step_that_takes_its_first_row(groups: list[int], lanes: int, batch_rows: int) -> None:
    order = _order(groups, lanes=lanes)
    for lane in range(lanes):
        for window in order.windows(lane):
            step = order.needed_at(window, batch_rows)
            start, stop = order.lane_slice(lane, step, batch_rows)
            assert start <= window.first < stop


def test_the_order_is_the_same_on_every_machine() -> None:
    assert permutation(8, key=(1, 2)).tolist() == permutation(8, key=(1, 2)).tolist()
    assert [permutation(6, key=(7, epoch)).tolist() for epoch in range(3)] == [[4, 0, 1, 5, 3, 2], [1, 2, 3, 4, 5, 0], [5, 4, 0, 2, 3, 1]]


def test_seed_and_epoch_change_the_order_and_who_owns_a_row() -> None:
    groups = [50] * 40
    first, second = (_lane_stream(_order(groups, lanes=24, epoch=epoch), 0) for epoch in (0, 1))
    other_seed = _lane_stream(_order(groups, lanes=24, seed=2), 0)
    stayed = len(set(first.tolist()) & set(second.tolist())) / len(first)
    assert stayed < 0.3
    assert first.tolist() != other_seed.tolist()


def test_a_permutation_holds_each_index_once() -> None:
    for size in (0, 1, 2, 3, 1000, 4097):
        assert sorted(permutation(size, key=(size,)).tolist()) == list(range(size))


@pytest.mark.parametrize(("num_ranks", "lanes"), [(1, 24), (2, 24), (5, 25), (7, 28), (24, 24), (25, 25), (100, 100)])
def test_the_default_lanes_are_the_least_multiple_of_the_ring_from_24_on(num_ranks: int, lanes: int) -> None:
    assert default_lanes(num_ranks) == lanes


def test_row_counts_are_joined_file_by_file() -> None:
    assert group_rows([[3, 1], [], [2]]).tolist() == [3, 1, 2]
