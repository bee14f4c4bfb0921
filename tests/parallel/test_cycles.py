"""An operation that is asked for begins a cycle of Horovod at once, however long idle ones last."""

from __future__ import annotations

import os
import time
from pathlib import Path

import horovod.torch as hvd
import pytest
import torch

from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext

SUMS, PAUSE_S = 3, 0.2


def _sum_now_and_then(context: RankContext, cycle: dict[str, str], timeline: str) -> None:
    os.environ.update(cycle | {"HOROVOD_TIMELINE": timeline, "HOROVOD_TIMELINE_MARK_CYCLES": "1"})
    hvd.init()
    for number in range(SUMS):
        time.sleep(PAUSE_S + 0.02 * context.rank)  # a rank that comes first has an open operation meanwhile
        assert float(hvd.allreduce(torch.ones(1), name=f"sum.{number}", op=hvd.Sum)) == context.size
    hvd.shutdown()


def _cycles(cycle: dict[str, str], timeline: Path) -> int:
    run_on_ranks(2, _sum_now_and_then, cycle, str(timeline), deadline_s=30.0, must_end=True)
    return timeline.read_text().count("CYCLE_START")


def test_idle_cycles_last_long_and_an_operation_waits_for_none(tmp_path: Path) -> None:
    """As published (the control), ranks meet a thousand times a second, whether or not there is something to do."""
    assert _cycles({"HOROVOD_CYCLE_TIME": "1"}, tmp_path / "published.json") > 100
    assert _cycles({"HOROVOD_CYCLE_TIME": "1", "HOROVOD_CYCLE_TIME_IDLE": "60000"}, tmp_path / "ours.json") < 50


def _tuned(context: RankContext, sets: list[tuple[int, ...]], beside: bool) -> tuple[str | None, str | None]:
    with Communicator(context, extra_sets=sets, gradients_beside=beside):
        return os.environ.get("HOROVOD_CYCLE_TIME"), os.environ.get("HOROVOD_CYCLE_TIME_IDLE")


@pytest.mark.parametrize(("hosts", "sets", "beside", "cycles"), [
    pytest.param((0, 1), [], False, ("5", "100"), id="all ranks ask for each sum"),
    pytest.param((0, 0, 1), [], False, ("5", None), id="leaders of hosts sum for the others"),
    pytest.param((0, 0, 1), [], True, ("100", "100"), id="gradients do not pass through Horovod"),
    pytest.param((0, 1, 2), [(0, 1)], False, ("5", None), id="a stage sums without the other"),
])
def test_idle_cycles_are_long_only_where_all_ranks_ask(hosts: tuple[int, ...], sets: list[tuple[int, ...]], beside: bool,
                                                           cycles: tuple[str, str | None]) -> None:
    assert run_on_ranks(len(hosts), _tuned, sets, beside, hosts=hosts, cycle_ms=None) == [cycles] * len(hosts)
