"""Both reducers sum exactly, in every layout of hosts, over several rounds and in any order of readiness."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
import torch

from harness.ranks import run_on_ranks
from sparkring.errors import RingError
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.gradients import open_gradient_reducer
from sparkring.pipelines.parallel.collectives.memory_sets import open_set_reducer
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.shared_memory import named_files
from tests.support import seams

SIZES = (1, 1000, 70_001)
ROUNDS = 3


def _sums(context: RankContext) -> tuple[str, list[bool]]:
    """How it summed, and whether each round gave sum over ranks of (rank + 1) * round * index-dependent values."""
    with Communicator(context) as communicator:
        reducer = open_gradient_reducer(communicator, SIZES, torch.float64, device=torch.device("cpu"))
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


def _reserved(context: RankContext, alone: bool) -> int:
    """The most bytes of shared memory that this rank reserves at once to sum a million numbers, over itself alone or over all."""
    lengths, create = [0], named_files.create_locked

    def noting(path: Path, length: int) -> int | None:
        lengths.append(length)
        return create(path, length)

    group = (context.rank,) if alone else tuple(range(context.size))
    with Communicator(context) as communicator:
        seams.replace(seams.SEGMENT_CREATE_LOCKED, noting)
        open_set_reducer(communicator, group)
        open_gradient_reducer(communicator, [10**6], torch.float64, device=torch.device("cpu"), group=group).close()
        communicator.barrier("opened")
    return max(lengths)


@pytest.mark.parallel
def test_a_rank_that_sums_with_nobody_of_its_host_reserves_no_shared_memory() -> None:
    assert max(run_on_ranks(2, _reserved, True)) < 1000
    assert min(run_on_ranks(2, _reserved, False)) > 8 * 10**6, "the control"


def _one_dies(context: RankContext) -> str:
    communicator = Communicator(context)
    reducer = open_gradient_reducer(communicator, SIZES, torch.float64, device=torch.device("cpu"))
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for index in range(len(SIZES)):
            reducer.ready(index)
        reducer.finish()
    except RingError as error:
        return f"{reducer.description}: {type(error).__name__}: {error}"
    return "summed"


@pytest.mark.parallel
def test_a_rank_that_has_died_is_told_at_once_and_not_at_the_deadline() -> None:
    for told in run_on_ranks(3, _one_dies, doomed=(1,))[::2]:
        assert told.startswith("shared memory: RingEnded: the sum of gradients")
        assert "the process of rank 1 has ended" in told


def _dies_while_opening(context: RankContext, folder: str, said: str) -> str:
    seams.replace(seams.NAMED_FILES_FOLDER, Path(folder))
    create = named_files.create_locked

    def dying(path: Path, length: int) -> int | None:
        handle = create(path, length)
        if context.rank == 1:
            Path(said).write_text(str(path), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGKILL)
        return handle

    seams.replace(seams.SEGMENT_CREATE_LOCKED, dying)
    try:
        Communicator(context)
    except RingError as error:
        return type(error).__name__
    return "joined"


def _joins(context: RankContext, folder: str) -> None:
    seams.replace(seams.NAMED_FILES_FOLDER, Path(folder))
    with Communicator(context):
        pass


@pytest.mark.parallel
def test_the_next_ring_removes_the_memory_of_a_rank_that_was_killed_while_its_peers_opened_it(tmp_path: Path) -> None:
    said = tmp_path / "named"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # of its own: a ring of another test would remove the file, too
        assert run_on_ranks(2, _dies_while_opening, folder, str(said), doomed=(1,))[0] in {"RingEnded", "DeadlinePassed"}
        left = Path(said.read_text(encoding="utf-8"))
        run_on_ranks(1, _joins, folder, shared_memory=False)
        assert left.exists(), "the control: a ring without shared memory does not look"
        run_on_ranks(1, _joins, folder)
        assert left.parent == Path(folder)
        assert not left.exists()
