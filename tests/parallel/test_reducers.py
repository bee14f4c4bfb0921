"""Both reducers sum exactly, in every layout of hosts, over several rounds and in any order of readiness."""

from __future__ import annotations

import pytest
import torch

from sparkring.pipelines.parallel.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.reducer import open_reducer
from tests.support.ranks import run_on_ranks

SIZES = (1, 1000, 70_001)
ROUNDS = 3


def _sums(context: RankContext) -> tuple[str, list[bool]]:
    """How it summed, and whether each round gave sum over ranks of (rank + 1) * round * index-dependent values."""
    with Communicator(context) as communicator:
        reducer = open_reducer(communicator, SIZES, torch.float64, device=torch.device("cpu"))
        weight = sum(range(1, context.size + 1))
        right = []
        for number in range(1, ROUNDS + 1):
            order = range(len(SIZES)) if context.rank % 2 else reversed(range(len(SIZES)))
            for index in order:
                base = torch.arange(SIZES[index], dtype=torch.float64) + number
                reducer.buffers[index].copy_(base * (context.rank + 1))
                reducer.ready(index)
            reducer.finish()
            right += [bool(torch.equal(reducer.buffers[index], (torch.arange(size, dtype=torch.float64) + number) * weight))
                      for index, size in enumerate(SIZES)]
        reducer.close()
        return reducer.description, right


@pytest.mark.parallel
@pytest.mark.parametrize(("hosts", "shared", "description"), [
    pytest.param((0,), True, "ring", id="one rank has nothing to sum"),
    pytest.param((0, 0, 0), True, "shared memory", id="one host of three"),
    pytest.param((0, 0, 0), False, "ring", id="one host without shared memory"),
    pytest.param((0, 1), True, "ring", id="two hosts of one"),
    pytest.param((0, 0, 1, 1), True, "shared memory, ring of 2 hosts", id="two hosts of two"),
    pytest.param((0, 0, 1), True, "shared memory, ring of 2 hosts", id="two unequal hosts"),
])
def test_every_layout_sums_exactly(hosts: tuple[int, ...], shared: bool, description: str) -> None:
    results = run_on_ranks(len(hosts), _sums, hosts=hosts, shared_memory=shared)
    assert results == [(description, [True] * len(SIZES) * ROUNDS)] * len(hosts)
