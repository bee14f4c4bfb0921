"""Storage that takes longer than a rank is waited for ends no ring; a rank that stands still meanwhile does, within the deadline."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from harness.ranks import run_on_ranks
from sparkring.errors import DeadlinePassed, SparkringError
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.keepalive import run_keeping_alive
from sparkring.pipelines.parallel.context import RankContext

DEADLINE_S = 3.0
WORK_S, ENDLESS_S = 7.0, 60.0

pytestmark = pytest.mark.parallel


def _slow_storage(context: RankContext) -> int | None:
    with Communicator(replace(context, deadline_s=DEADLINE_S)) as communicator:
        return run_keeping_alive(communicator, _work if context.rank == 0 else None, name="storage")


def _untold(context: RankContext) -> str:
    try:
        with Communicator(replace(context, deadline_s=DEADLINE_S)) as communicator:
            if context.rank == 0:
                _work()
            communicator.barrier("storage")
    except SparkringError as error:
        return type(error).__name__
    return ""


def _work(seconds: float = WORK_S) -> int:
    time.sleep(seconds)
    return 7


@pytest.mark.parametrize("hosts", [pytest.param((0, 0), id="by memory"), pytest.param((0, 1), id="by Horovod", marks=pytest.mark.nightly)])
def test_slow_storage_of_one_rank_is_waited_for_by_all(hosts: tuple[int, int]) -> None:
    ring: dict[str, Any] = {"hosts": hosts, "shared_memory": hosts == (0, 0)}
    assert run_on_ranks(2, _slow_storage, **ring) == [7, None]
    assert run_on_ranks(2, _untold, **ring)[1] == "DeadlinePassed"  # the control


def _raised(context: RankContext) -> str:
    with Communicator(context) as communicator:
        try:
            run_keeping_alive(communicator, _refuse if context.rank == 0 else None, name="storage")
        except OSError as error:
            return str(error)
        return "nothing"


def _refuse() -> None:
    raise OSError("no space left")


def test_what_the_work_raises_is_raised_on_its_rank() -> None:
    assert run_on_ranks(2, _raised) == ["no space left", "nothing"]


def _stopped(context: RankContext) -> str:
    context = replace(context, deadline_s=DEADLINE_S)
    communicator = Communicator(context)
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        run_keeping_alive(communicator, partial(_work, ENDLESS_S), name="storage")
    except DeadlinePassed as error:
        return str(error)
    return ""


def test_a_rank_that_stands_still_meanwhile_is_silent_for_the_deadline_and_no_longer() -> None:
    assert "storage" in run_on_ranks(2, _stopped, doomed=(1,), deadline_s=ENDLESS_S)[0]
