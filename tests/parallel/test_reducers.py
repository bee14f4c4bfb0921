"""All reducers sum exactly, in every layout of hosts, over several rounds and in any order of readiness."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.ranks import run_on_ranks
from sparkring.conf.schema import RingConfig
from sparkring.errors import RingError
from sparkring.pipelines.parallel.allreduce.gradients import open_gradient_reducer
from sparkring.pipelines.parallel.collectives.communicator import Communicator
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


def _by_sockets(context: RankContext, keys: list[dict[str, Any]]) -> list[tuple[str, list[bool]]]:
    """The same of reducers by several ways, one after the other; the last rank has no rows in each of their rounds."""
    found = []
    with Communicator(context) as communicator:
        for key in keys:
            reducer = open_gradient_reducer(communicator, SIZES, torch.float64, device=torch.device("cpu"), ring=RingConfig(**key))
            right = []
            for number in range(1, ROUNDS + 1):
                weights = [rank + 1 if rank < context.size - 1 else 0 for rank in range(context.size)]
                order = range(len(SIZES)) if context.rank % 2 else reversed(range(len(SIZES)))
                for index in order:
                    reducer.buffers[index].copy_((torch.arange(SIZES[index], dtype=torch.float64) + number) * weights[context.rank])
                    reducer.ready(index)
                reducer.finish()
                right += [bool(torch.equal(reducer.buffers[index], (torch.arange(size, dtype=torch.float64) + number) * sum(weights)))
                          for index, size in enumerate(SIZES)]
            reducer.close()
            found.append((reducer.description, right))
    return found


WAYS = [{"allreduce": name} for name in ("ring", "tree", "two_level", "auto")]


@pytest.mark.parallel
@pytest.mark.parametrize(("hosts", "shared"), [
    pytest.param((0, 0, 1, 2, 2), True, id="three hosts of unequal numbers"), pytest.param((0, 0, 1), False, id="no shared memory"),
    *(pytest.param(tuple(place * num_hosts // size for place in range(size)), True, id=f"{size} ranks on {num_hosts} hosts",
                   marks=pytest.mark.nightly) for size in range(2, 10) for num_hosts in range(2, min(size, 4) + 1))])
def test_every_way_between_hosts_sums_exactly(hosts: tuple[int, ...], shared: bool) -> None:
    results = run_on_ranks(len(hosts), _by_sockets, WAYS, hosts=hosts, shared_memory=shared)
    assert all(right == [True] * len(SIZES) * ROUNDS for found in results for _, right in found)
    assert len({tuple(description for description, _ in found) for found in results}) == 1
    flat, two_levels = results[0][0][0], results[0][2][0]
    assert flat.startswith(f"{len(hosts)} ranks by sockets, buffers: ring for 3 of up to ")
    assert two_levels.startswith("shared memory, ") == (shared and len(set(hosts)) < len(hosts))


def _in_groups(context: RankContext, groups: list[list[int]]) -> tuple[str, bool]:
    """How the rank's group sums more than 1 MB, and whether the sum is right."""
    group = next(tuple(group) for group in groups if context.rank in group)
    with Communicator(context) as communicator:
        reducer = open_gradient_reducer(communicator, [150_000], torch.float64, device=torch.device("cpu"), group=group,
                                        ring=RingConfig(allreduce="auto"))
        reducer.buffers[0].fill_(context.rank + 1)
        reducer.ready(0)
        reducer.finish()
        right = bool((reducer.buffers[0] == sum(rank + 1 for rank in group)).all())
        reducer.close()
        return reducer.description.partition(",")[0], right


@pytest.mark.parallel
@pytest.mark.parametrize(("hosts", "groups", "ways"), [
    pytest.param((0, 0, 1), [[0, 1], [2]], ["shared memory", "shared memory", "one rank"], id="a host each: nothing to sum between them"),
    pytest.param((0, 1, 1, 2), [[0, 1, 3], [2]], ["3 ranks by sockets"] * 2 + ["one rank", "3 ranks by sockets"], id="some time ways")])
def test_groups_of_one_ring_sum_between_hosts_each_as_it_needs(hosts: tuple[int, ...], groups: list[list[int]], ways: list[str]) -> None:
    assert run_on_ranks(len(hosts), _in_groups, groups, hosts=hosts) == [(way, True) for way in ways]


@pytest.mark.parallel
def test_one_host_sums_through_memory_whatever_is_said_about_hosts() -> None:
    assert {description for found in run_on_ranks(2, _by_sockets, WAYS) for description, _ in found} == {"shared memory"}


def _one_leaves(context: RankContext, how: str) -> str:
    communicator = Communicator(replace(context, deadline_s=3.0))
    reducer = open_gradient_reducer(communicator, SIZES, torch.float64, device=torch.device("cpu"), ring=RingConfig(allreduce="auto"))
    if context.rank == 2:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    try:
        for index in range(len(SIZES)):
            reducer.ready(index)
        reducer.finish()
    except RingError as error:
        return f"{type(error).__name__} {getattr(error, 'awaited', ())}: {error}"
    return "summed"


@pytest.mark.parallel
def test_between_hosts_a_rank_that_died_or_is_silent_is_named_with_its_host() -> None:
    host = socket.gethostname()
    for told in run_on_ranks(3, _one_leaves, "dies", hosts=(0, 0, 1), doomed=(2,))[:1]:
        assert told.startswith("RingEnded ()")
        assert f"rank 2 on {host} has ended" in told
    for told in run_on_ranks(3, _one_leaves, "is silent", hosts=(0, 0, 1), doomed=(2,))[:1]:
        assert told.startswith("DeadlinePassed (2,): rank 0 waited 3 s")
        assert f"for rank 2 on {host}" in told


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
