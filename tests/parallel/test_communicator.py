"""What ranks say to each other beside gradients: agreement, gathering, broadcast, and waits that end; through memory and by Horovod."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.ranks import run_on_ranks
from sparkring.errors import DeadlinePassed, RingEnded, RingError
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext

LONG = bytes(range(256)) * 10_000
"""Several pieces of what goes through memory at once."""


def _conversation(context: RankContext) -> dict[str, Any]:
    with Communicator(context) as communicator:
        rank = context.rank
        said: dict[str, Any] = {
            "sum": communicator.sum(torch.tensor([2**62, rank], dtype=torch.int64), name="sum").tolist(),
            "gathered": communicator.gather(torch.full((rank, 2), float(rank)), name="gather").tolist(),
            "bytes": communicator.broadcast_bytes(f"from rank {rank}".encode(), name="bytes").decode(),
            "nothing": communicator.broadcast_bytes(b"" if rank == 0 else b"ignored", name="nothing").decode(),
            "everybody's": communicator.gather_bytes(LONG[:rank * 1_000_000], name="everybody") == [
                LONG[:other * 1_000_000] for other in range(context.size)],
            "long": communicator.broadcast_bytes(LONG if rank == 0 else b"", name="long") == LONG,
            "beside": [len(each) for each in communicator.gather_bytes_off_thread(b"x" * rank, name="beside", deadline_s=10.0)],
            "all agree": communicator.agree(mine=True, name="yes"),
            "one disagrees": communicator.agree(mine=rank != 1, name="no"),
            "same hash": len(communicator.require_equal(b"the same state", what="state")),
        }
        try:
            communicator.require_equal(b"state of rank 2" if rank == 2 else b"state", what="another state")
        except RingError as error:
            said["different"] = str(error)
        return said


@pytest.mark.parallel
@pytest.mark.parametrize("shared_memory", [True, False])
def test_ranks_agree_gather_and_broadcast(*, shared_memory: bool) -> None:
    results = run_on_ranks(3, _conversation, shared_memory=shared_memory)
    assert results[1:] == results[:-1]
    said = results[0]
    assert said["sum"] == [3 * 2**62 - 2**64, 3]  # wraps around, as digests need it
    assert said["gathered"] == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
    assert (said["bytes"], said["nothing"]) == ("from rank 0", "")
    assert (said["everybody's"], said["long"], said["beside"]) == (True, True, [0, 1, 2])
    assert (said["all agree"], said["one disagrees"], said["same hash"]) == (True, False, 64)
    assert "another state of ranks [2] differs from rank 0's" in said["different"]


def _alone(context: RankContext) -> tuple[list[int], bytes, list[bytes]]:
    with Communicator(context) as communicator:
        return (communicator.sum(torch.tensor([3]), name="sum").tolist(), communicator.broadcast_bytes(LONG, name="own")[-3:],
                communicator.gather_bytes(b"own", name="own"))


@pytest.mark.parallel
def test_a_rank_alone_hears_itself() -> None:
    assert run_on_ranks(1, _alone) == [([3], LONG[-3:], [b"own"])]


def _one_does_not_come(context: RankContext) -> str:
    communicator = Communicator(context)
    communicator.context = replace(context, deadline_s=0.5)
    if context.rank == 1:
        signal.pause()
    try:
        communicator.barrier("early")
    except DeadlinePassed as error:
        return str(error)
    return "no error"


@pytest.mark.parallel
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_wait_for_a_rank_that_does_not_come_ends_at_the_deadline(*, shared_memory: bool) -> None:
    text = run_on_ranks(2, _one_does_not_come, shared_memory=shared_memory, doomed=(1,))[0]
    assert "barrier.early: other ranks did not join within 0.5 s" in text


def _one_dies(context: RankContext) -> str:
    communicator = Communicator(context)
    communicator.barrier("all here")
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        communicator.barrier("some are")
    except RingEnded as error:
        return str(error)
    return "no error"


@pytest.mark.parallel
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_wait_for_a_rank_that_has_died_ends_at_once(*, shared_memory: bool) -> None:
    first, _, last = run_on_ranks(3, _one_dies, shared_memory=shared_memory, doomed=(1,))
    assert first.startswith("barrier.some are: the ring has ended")
    assert last.startswith("barrier.some are: the ring has ended")
    if shared_memory:
        assert "the process of rank 1 has ended" in first


def _out_of_step(context: RankContext) -> str:
    communicator = Communicator(context)
    try:
        communicator.gather_bytes(b"", name=f"step {context.rank}")
    except RingError as error:
        return str(error)
    return "no error"


@pytest.mark.parallel
def test_ranks_that_are_out_of_step_say_so() -> None:
    first, second = run_on_ranks(2, _out_of_step)
    assert "step 0: ranks [1] perform another operation" in first
    assert "step 1: ranks [0] perform another operation" in second


def _cycle(context: RankContext) -> str:
    with Communicator(context):
        return os.environ["HOROVOD_CYCLE_TIME"]


def _tuning_on_a_gpu(context: RankContext) -> tuple[float, dict[str, str]]:
    """What is left of our settings where the gradients are on a GPU, and a sum of tensors on the CPU there."""
    with Communicator(replace(context, device="cuda:0")) as communicator:
        total = float(communicator.sum(torch.tensor([1.0 + context.rank]), name="total"))
        return total, {name: value for name, value in os.environ.items() if name in {"HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD"}}


@pytest.mark.parallel
def test_on_gpus_horovod_s_cycle_and_fusion_are_its_own() -> None:
    assert run_on_ranks(2, _tuning_on_a_gpu, cycle_ms=None) == [(3.0, {})] * 2


@pytest.mark.parallel
@pytest.mark.parametrize(("hosts", "shared_memory", "user", "cycle"), [
    pytest.param((0, 0), True, None, "100", id="sums in memory"),
    pytest.param((0, 0), False, None, "5", id="rings"),
    pytest.param((0, 1), True, None, "5", id="rings between hosts"),
    pytest.param((0, 0), True, 2, "2", id="the user's own"),
])
def test_horovods_thread_wakes_often_only_where_gradients_pass_through_it(
        hosts: tuple[int, ...], shared_memory: bool, user: int | None, cycle: str) -> None:
    assert run_on_ranks(2, _cycle, hosts=hosts, shared_memory=shared_memory, cycle_ms=user) == [cycle, cycle]
