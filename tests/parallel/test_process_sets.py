"""What the mesh accepts starts on real ranks of several pretended hosts; what it refuses really fails there (the controls)."""

from __future__ import annotations

import os
import re

import horovod.torch as hvd
import pytest
import torch

from harness.ranks import run_on_ranks
from sparkring.errors import LayoutRefused
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Mesh, Ranks

MEET_S = 3
"""Seconds that Horovod waits for ranks which look for each other under two names."""


def _start(context: RankContext, sets: list[Ranks], timeout_s: int) -> list[float]:
    """Have Horovod start the sets; returns this rank's sum over each of those that it is in."""
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(timeout_s)
    made = [hvd.ProcessSet(list(ranks)) for ranks in sets]
    hvd.init(process_sets=made)
    sums = [float(hvd.allreduce(torch.tensor([float(context.rank)]), name=f"sum.{number}", op=hvd.Sum, process_set=one))
            for number, one in enumerate(made) if context.rank in one.ranks]
    hvd.allreduce(torch.zeros(1), name="end")  # who leaves earlier ends the others' ring
    hvd.shutdown()
    return sums


@pytest.mark.parallel
@pytest.mark.parametrize(("mesh", "hosts"), [
    pytest.param(Mesh((2, 2)), (0, 0, 1, 1), id="a stage a host"),
    pytest.param(Mesh((3, 1)), (0, 0, 1, 1), id="a stage over one host and a half"),
    pytest.param(Mesh((1, 1), shards=2), (0, 0, 1, 1), id="shards on one host"),
    pytest.param(Mesh((1, 2, 1)), (0, 1, 1, 2), id="three unequal hosts"),
])
def test_the_sets_of_an_accepted_mesh_start_and_sum(mesh: Mesh, hosts: tuple[int, ...]) -> None:
    sets = list(mesh.process_sets(hosts))
    expected = [[float(sum(ranks)) for ranks in sets if rank in ranks] for rank in range(mesh.size)]
    assert run_on_ranks(mesh.size, _start, sets, 60, hosts=hosts) == expected


@pytest.mark.parallel
@pytest.mark.parametrize(("mesh", "refused", "hosts"), [
    pytest.param(Mesh((1, 3)), (1, 2, 3), (0, 0, 1, 1), id="members that must meet have two numbers"),
    pytest.param(Mesh((2, 1, 1)), (0, 1, 3), (0, 0, 1, 1), id="tied stages"),
])
def test_control_what_is_refused_cannot_start_there_but_does_on_one_host(mesh: Mesh, refused: Ranks, hosts: tuple[int, ...]) -> None:
    tied = [(0, mesh.num_stages - 1)] if mesh.num_stages > 2 else []
    with pytest.raises(LayoutRefused, match=re.escape(f"need the process set {list(refused)}, which Horovod cannot start")):
        mesh.process_sets(hosts, tied=tied)
    assert refused in mesh.process_sets((0,) * len(hosts), tied=tied)
    with pytest.raises(AssertionError, match=r"HorovodInternalError|Horovod initialization failed|died without a word"):
        run_on_ranks(len(hosts), _start, [refused], MEET_S, hosts=hosts)
    started = run_on_ranks(len(hosts), _start, [refused], 60)
    assert started == [[float(sum(refused))] if rank in refused else [] for rank in range(len(hosts))]
