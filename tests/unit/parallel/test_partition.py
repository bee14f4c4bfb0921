"""Cutting blocks into runs: by count, by hand, and exactly by time and memory, against all cuts there are."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkring.errors import LayoutRefused
from sparkring.pipelines.parallel.stages.partition import (
    BlockCost,
    Bounds,
    MemoryModel,
    cut_by_count,
    cut_by_hand,
    cut_by_time,
    most_even,
)

NAMES = ("embedding", "blocks.0", "blocks.1", "blocks.2", "head")


def _blocks(*seconds: float) -> list[BlockCost]:
    return [BlockCost(name=f"b{number}", seconds=value) for number, value in enumerate(seconds)]


def _all_cuts(num_blocks: int, num_runs: int) -> list[Bounds]:
    return [(0, *inner, num_blocks) for inner in combinations(range(1, num_blocks), num_runs - 1)]


def test_by_count_the_first_runs_take_what_does_not_come_out_even() -> None:
    assert cut_by_count(7, 3) == (0, 3, 5, 7)
    assert cut_by_count(4, 4) == (0, 1, 2, 3, 4)


def test_by_hand_in_numbers_or_by_the_first_block_of_each_further_stage() -> None:
    assert cut_by_hand(NAMES, [2, 2, 1]) == cut_by_hand(NAMES, ["blocks.1", "head"]) == (0, 2, 4, 5)


@pytest.mark.parametrize(("wanted", "message"), [
    pytest.param([2, 2], "the model has 5 blocks; give one number from 1 up a stage, 5 in all", id="too few"),
    pytest.param([5, 0], "from 1 up", id="an empty stage"),
    pytest.param([2, "head"], "one number", id="numbers and names"),
    pytest.param(["block.1"], r"no block is called 'block.1'; did you mean 'blocks.\d'\?; the blocks are embedding, blocks.0",
                 id="a typing error"),
    pytest.param(["blocks.2", "blocks.1"], "block blocks.1 cannot be the first of stage 2: it is block 2, and stage 1 begins with block 3",
                 id="out of order"),
    pytest.param(["embedding"], "cannot be the first of stage 1", id="an empty first stage"),
])
def test_a_cut_by_hand_that_cannot_be_is_refused_with_what_is_wrong(wanted: list[int] | list[str], message: str) -> None:
    with pytest.raises(LayoutRefused, match=message):
        cut_by_hand(NAMES, wanted)


def test_by_time_the_slowest_run_is_as_fast_as_it_can_be() -> None:
    #        4     3     2     2     2     1      of the cuts into 3: 4 | 3 2 | 2 2 1 and 4 | 3 2 | 2 2 1 go at 5
    assert cut_by_time(_blocks(4, 3, 2, 2, 2, 1), 3) == (0, 1, 3, 6)
    assert cut_by_count(6, 3) == (0, 2, 4, 6)  # control: 4 3 | 2 2 | 2 1 goes at 7


def test_of_equally_fast_cuts_the_most_even_one_is_taken() -> None:
    #    9 | 1 1 1 1: whatever the rest does, a step takes 9; an even rest leaves the others the most room
    assert cut_by_time(_blocks(9, 1, 1, 1, 1), 3) == (0, 1, 3, 5)


def test_a_stage_with_two_replicas_takes_twice_as_much() -> None:
    assert cut_by_time(_blocks(*[1.0] * 6), 2, replicas=(2, 1)) == (0, 4, 6)
    assert cut_by_time(_blocks(*[1.0] * 6), 2, replicas=(1, 2)) == (0, 2, 6)


def test_a_border_that_is_dear_to_cross_is_not_cut() -> None:
    assert cut_by_time(_blocks(2, 2, 2, 2), 2) == (0, 2, 4)
    assert cut_by_time(_blocks(2, 2, 2, 2), 2, border_seconds=(0, 3, 0)) == (0, 1, 4)


def test_memory_counts_a_tied_part_once_a_run_and_activations_as_often_as_they_are_in_flight() -> None:
    tied = {"token_embedding": 100}
    costs = [BlockCost(name="embedding", parameter_bytes=8, shared_bytes=tied, activation_bytes=1),
             BlockCost(name="blocks.0", parameter_bytes=50, activation_bytes=10),
             BlockCost(name="head", parameter_bytes=2, shared_bytes=tied, activation_bytes=30)]
    memory = MemoryModel(copies=4, in_flight=(3, 1), border_bytes=(5, 7))
    assert memory.run_bytes(costs, 0, 3, 1) == 4 * 160 + 1 * 41
    assert memory.run_bytes(costs, 0, 1, 0) == 4 * 108 + 3 * 1 + 5
    assert memory.run_bytes(costs, 1, 2, 0) == 4 * 50 + 3 * 10 + 5 + 7
    assert memory.run_bytes(costs, 1, 3, 1) == 4 * 152 + 40 + 5
    assert memory.run_bytes(costs, 0, 2, 0) == 4 * 158 + 3 * 11 + 7


def test_time_is_cut_so_that_it_fits_and_what_does_not_fit_is_named() -> None:
    costs = [BlockCost(name=f"blocks.{number}", seconds=1, parameter_bytes=size * 1_000_000) for number, size in enumerate((1, 1, 1, 5))]

    def memory(megabytes: float) -> MemoryModel:
        return MemoryModel(copies=4, in_flight=(2, 1), limit_bytes=megabytes * 1e6)

    assert cut_by_time(costs, 2, memory=memory(40)) == (0, 2, 4)
    assert cut_by_time(costs, 2, memory=memory(20)) == (0, 3, 4)  # slower, but it fits
    with pytest.raises(LayoutRefused, match=r"block blocks.3 alone takes 20 MB, a rank may take 19 MB; give a rank more memory"):
        cut_by_time(costs, 2, memory=memory(19))
    with pytest.raises(LayoutRefused, match=r"no cut into 2 fits: in the best one, stage 0 with blocks blocks.3 to blocks.1 takes 24 MB"):
        cut_by_time([costs[3], *costs[1:]], 2, memory=memory(23))  # 20 4 | 4 20
    with pytest.raises(LayoutRefused, match=r"5 stages .* has 4 blocks .* ask for 1 to 4"):
        cut_by_time(costs, 5)


@given(st.data())
def test_the_cut_is_the_best_of_all_cuts(data: st.DataObject) -> None:
    num_blocks = data.draw(st.integers(1, 8))
    num_runs = data.draw(st.integers(1, num_blocks))
    blocks = data.draw(st.lists(st.integers(0, 20), min_size=num_blocks, max_size=num_blocks))
    borders = data.draw(st.lists(st.integers(0, 5), min_size=num_blocks - 1, max_size=num_blocks - 1))
    replicas = data.draw(st.lists(st.integers(1, 3), min_size=num_runs, max_size=num_runs))
    forbidden = data.draw(st.sets(st.tuples(st.integers(0, 7), st.integers(1, 8), st.integers(0, 7)), max_size=20))

    def cost(first: int, last: int, run: int) -> float:
        if (first, last, run) in forbidden:
            return math.inf
        inner = sum(borders[border - 1] for border in (first, last) if 0 < border < num_blocks)
        return (sum(blocks[first:last]) + inner) / replicas[run]

    def judged(bounds: Bounds) -> tuple[float, float]:
        costs = [cost(first, last, run) for run, (first, last) in enumerate(pairwise(bounds))]
        return max(costs), sum(value * value for value in costs)

    found = most_even(num_blocks, num_runs, cost)
    best = min(judged(bounds) for bounds in _all_cuts(num_blocks, num_runs))
    if found is None:
        assert best[0] == math.inf
    else:
        assert judged(found) == pytest.approx(best, rel=1e-9)
        if not forbidden:
            measured = [BlockCost(name=str(number), seconds=value) for number, value in enumerate(blocks)]
            assert cut_by_time(measured, num_runs, replicas=replicas, border_seconds=borders) == found


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=7), st.data())
def test_a_cut_within_memory_is_found_exactly_where_one_fits(sizes: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    costs = [BlockCost(name=str(number), parameter_bytes=parameters, activation_bytes=kept, shared_bytes={"tied": 5} if tied else {})
             for number, (parameters, kept, tied) in enumerate(sizes)]
    num_runs = data.draw(st.integers(1, len(costs)))
    memory = MemoryModel(copies=3, in_flight=tuple(range(num_runs, 0, -1)), limit_bytes=data.draw(st.integers(0, 120)))
    largest = {bounds: max(memory.run_bytes(costs, first, last, run) for run, (first, last) in enumerate(pairwise(bounds)))
               for bounds in _all_cuts(len(costs), num_runs)}
    if min(largest.values()) <= memory.limit_bytes:
        assert largest[cut_by_time(costs, num_runs, memory=memory)] <= memory.limit_bytes
    else:
        with pytest.raises(LayoutRefused, match=r"alone takes|no cut into"):
            cut_by_time(costs, num_runs, memory=memory)
