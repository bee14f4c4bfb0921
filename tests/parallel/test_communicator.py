"""What ranks say to each other beside gradients: agreement, gathering, broadcast, and waits that end."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from sparkring.errors import DeadlinePassed, RingError
from sparkring.pipelines.parallel.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from tests.support.ranks import run_on_ranks


def _conversation(context: RankContext) -> dict[str, Any]:
    with Communicator(context) as communicator:
        rank = context.rank
        said: dict[str, Any] = {
            "sum": communicator.sum(torch.tensor([2**62, rank], dtype=torch.int64), name="sum").tolist(),
            "gathered": communicator.gather(torch.full((rank, 2), float(rank)), name="gather").tolist(),
            "bytes": communicator.broadcast_bytes(f"from rank {rank}".encode(), name="bytes").decode(),
            "nothing": communicator.broadcast_bytes(b"" if rank == 0 else b"ignored", name="nothing").decode(),
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
def test_ranks_agree_gather_and_broadcast() -> None:
    results = run_on_ranks(3, _conversation)
    assert results[1:] == results[:-1]
    said = results[0]
    assert said["sum"] == [3 * 2**62 - 2**64, 3]  # wraps around, as digests need it
    assert said["gathered"] == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
    assert (said["bytes"], said["nothing"]) == ("from rank 0", "")
    assert (said["all agree"], said["one disagrees"], said["same hash"]) == (True, False, 64)
    assert "another state of ranks [2] differs from rank 0's" in said["different"]


def _one_is_late(context: RankContext) -> tuple[str, bool]:
    communicator = Communicator(replace(context, deadline_s=0.5))
    began = time.monotonic()
    if context.rank == 1:
        while time.monotonic() - began < 3:  # does not join for longer than the deadline
            time.sleep(0.05)
        return "late", True
    try:
        communicator.barrier("early")
    except DeadlinePassed as error:
        return str(error), time.monotonic() - began < 3
    return "no error", False


@pytest.mark.parallel
def test_a_wait_for_a_rank_that_does_not_come_ends_at_the_deadline() -> None:
    text, in_time = run_on_ranks(2, _one_is_late)[0]
    assert "barrier.early: other ranks did not join within 0.5 s" in text
    assert in_time


def _cycle(context: RankContext) -> str:
    with Communicator(context):
        return os.environ["HOROVOD_CYCLE_TIME"]


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
