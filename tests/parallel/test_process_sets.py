"""The process sets of a mesh start on real ranks of several pretended hosts, whichever ranks they hold."""

from __future__ import annotations

import os

import horovod.torch as hvd
import pytest
import torch

from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Mesh, Ranks

MEET_S = 20
"""Seconds that Horovod waits for ranks that do not find each other."""


def _start(context: RankContext, sets: list[Ranks]) -> list[float]:
    """Have Horovod start the sets; returns this rank's sum over each of those that it is in."""
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(MEET_S)
    made = [hvd.ProcessSet(list(ranks)) for ranks in sets]
    hvd.init(process_sets=made)
    sums = [float(hvd.allreduce(torch.tensor([float(context.rank)]), name=f"sum.{number}", op=hvd.Sum, process_set=one))
            for number, one in enumerate(made) if context.rank in one.ranks]
    hvd.allreduce(torch.zeros(1), name="end")  # who leaves earlier ends the others' ring
    hvd.shutdown()
    return sums


def assert_they_start(sets: list[Ranks], hosts: tuple[int, ...]) -> None:
    expected = [[float(sum(ranks)) for ranks in sets if rank in ranks] for rank in range(len(hosts))]
    assert run_on_ranks(len(hosts), _start, sets, hosts=hosts) == expected


@pytest.mark.parametrize(("mesh", "hosts"), [
    pytest.param(Mesh((2, 2)), (0, 0, 1, 1), id="a stage a host"),
    pytest.param(Mesh((3, 1)), (0, 0, 1, 1), id="a stage over one host and a half"),
    pytest.param(Mesh((1, 1), shards=2), (0, 0, 1, 1), id="shards on one host"),
    pytest.param(Mesh((1, 2, 1)), (0, 1, 1, 2), id="three unequal hosts"),
])
def test_the_sets_of_a_mesh_start_and_sum(mesh: Mesh, hosts: tuple[int, ...]) -> None:
    assert_they_start(list(mesh.process_sets(hosts)), hosts)


# Horovod opens a second ring of a set's members that have the same place on their hosts. As published, it names that ring by a member's
# number among the set's members of its host, so these sets wait until Gloo's timeout; third_party/horovod names it by the first member.
@pytest.mark.parametrize(("sets", "hosts"), [
    #    hosts      0 0 | 1 1
    #    places     0 1 | 0 1        ranks 1 and 3 meet; in the set, rank 1 is number 0 of its host and rank 3 is number 1
    pytest.param([(1, 2, 3)], (0, 0, 1, 1), id="two that meet have different numbers"),
    #    hosts      0 0 | 1 1 | 2 2
    #    places     0 1 | 0 1 | 0 1  ranks 0 and 2 meet, rank 5 is alone; all are number 0 of their hosts
    pytest.param([(0, 2, 5), (0, 1, 3)], (0, 0, 1, 1, 2, 2), id="two groups have the same number"),
])
def test_a_set_starts_wherever_its_members_lie_on_their_hosts(sets: list[Ranks], hosts: tuple[int, ...]) -> None:
    assert_they_start(sets, hosts)
