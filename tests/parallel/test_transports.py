"""Every transport keeps the same promises, whatever order the ranks act in."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from harness.ranks import run_on_ranks
from sparkring.errors import ConfigError, PeerSilent, PipelineShapeError, RingError
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.shared_memory.named_files import paths_of
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.sidecar import SidecarTransport
from sparkring.pipelines.parallel.transports.socket_connect import Reception
from tests.support import seams
from tests.support.message_plans import act, plan_round
from tests.support.transports import MEMORY, SOCKETS, WAYS, both_ways, kind_of, opened, started, transport

pytestmark = pytest.mark.parallel
every_way = pytest.mark.parametrize("way", WAYS)
F, B = both_ways((0, 1))


def _fuzz(context: RankContext, way: str, edges: list[Edge], seeds: list[int], dynamic: bool) -> tuple[str, int, int]:
    received = right = 0
    with opened(context, way, edges, dynamic_shapes=dynamic) as (communicator, link):
        assert link.name == kind_of(way)
        for seed in seeds:
            counts = act(link, context.rank, plan_round(seed, edges, dynamic_shapes=dynamic))
            received, right = received + counts[0], right + counts[1]
            link.drain()
            communicator.barrier("round")  # then every number is free again
        return link.description, received, right


TWO = both_ways((0, 1))
THREE = both_ways((0, 1), (1, 2))
FOUR = [*both_ways((0, 2), (1, 2), (2, 3), (0, 3)), Edge(0, 2, "skip"), Edge(3, 2, "skip")]


@every_way
@pytest.mark.parametrize(("edges", "dynamic"), [
    pytest.param(TWO, True, id="2 ranks"), pytest.param(THREE, False, id="3 ranks, one shape an edge"),
    pytest.param(FOUR, True, id="4 ranks")])
def test_random_messages_arrive_whole_in_whatever_order_they_are_sent_and_received(way: str, edges: list[Edge], dynamic: bool) -> None:
    results = run_on_ranks(1 + max(max(edge[:2]) for edge in edges), _fuzz, way, edges, list(range(8)), dynamic)
    assert all(right == received for _, received, right in results)
    assert sum(received for _, received, _ in results) > 20 * len(edges)


@pytest.mark.parametrize(("hosts", "way", "description"), [
    pytest.param((0, 0, 1), "horovod", "", id="horovod"),
    pytest.param((0, 0, 1), "sidecar memory", "shared memory and sockets", id="sidecar, a host of two and one of one"),
    pytest.param((0, 1, 2), "sidecar memory", "sockets", id="sidecar, each on its own host"),
])
def test_messages_cross_from_host_to_host(hosts: tuple[int, ...], way: str, description: str) -> None:
    results = run_on_ranks(3, _fuzz, way, both_ways((0, 1), (1, 2), (0, 2)), [1, 2, 3], True, hosts=hosts)
    assert all((said, right) == (description, received) and received for said, received, right in results)


def _talk(context: RankContext, way: str) -> dict[str, Any]:
    said: dict[str, Any] = {}
    mine, theirs = (F, B) if context.rank == 0 else (B, F)
    with opened(context, way, [F, B, Edge(0, 1, "other")]) as (communicator, link):
        for micro_batch in range(40):  # both send before either receives, on two edges between the same two ranks
            link.send(mine, micro_batch, [torch.full((1000,), 100.0 * context.rank + micro_batch), torch.tensor(micro_batch)])
        got = [link.receive(theirs, micro_batch) for micro_batch in reversed(range(40))]
        said["values"] = [(int(values[0]), int(micro_batch)) for values, micro_batch in got]
        said["leaves"] = all(not tensor.requires_grad and tensor.is_leaf and tensor._base is None for tensor in got[0])
        link.drain()
        communicator.barrier("all received")
        weight = torch.ones(1000, requires_grad=True)
        link.send(mine, 0, [weight * 2, torch.tensor(0)])  # part of a graph: what is sent is the value
        said["of a graph"] = float(link.receive(theirs, 0)[0].sum())
        with torch.inference_mode():  # as evaluation does
            link.send(mine, 1, [torch.ones(1000) * 3, torch.tensor(0)])
            said["inference"] = float(link.receive(theirs, 1)[0].sum())
        try:
            link.send(Edge(0, 1, "none"), 0, [weight])
        except ConfigError as error:
            said["foreign"] = str(error)
        if context.rank == 0:
            link.send(Edge(0, 1, "other"), 5, [])
        else:
            link.expect(Edge(0, 1, "other"), 5)
            link.expect(Edge(0, 1, "other"), 5)  # twice is as good as once
            said["nothing"] = link.receive(Edge(0, 1, "other"), 5)
    return said


@every_way
def test_two_ranks_talk_in_both_directions_at_once(way: str) -> None:
    first, second = run_on_ranks(2, _talk, way)
    assert first["values"] == [(100 + micro_batch, micro_batch) for micro_batch in reversed(range(40))]
    assert second["values"] == [(micro_batch, micro_batch) for micro_batch in reversed(range(40))]
    assert first["leaves"]
    assert second["leaves"]
    assert (first["of a graph"], second["of a graph"], second["nothing"]) == (2000.0, 2000.0, [])
    assert (first["inference"], second["inference"]) == (3000.0, 3000.0)
    assert first["foreign"] == ("rank 0 cannot send on edge none 0>1: the transport was opened with f1 0>1, other 0>1; "
                                "open it with all edges of the schedule.")


def _many(context: RankContext, way: str, count: int) -> bool:
    with opened(context, way, [F, B]) as (communicator, link):
        if context.rank == 0:
            for micro_batch in range(count):
                link.send(F, micro_batch, [torch.tensor([micro_batch])])
            communicator.barrier("all are sent before one is received")
            return True
        communicator.barrier("all are sent before one is received")
        return [int(link.receive(F, micro_batch)[0]) for micro_batch in range(count)] == list(range(count))


@every_way
def test_thousands_of_messages_may_be_on_their_way(way: str) -> None:
    assert run_on_ranks(2, _many, way, 3000 if way.startswith("sidecar") else 500) == [True, True]


def _many_with_few_files(context: RankContext) -> bool:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))  # a usual limit is 1024; this takes less time
    return _many(context, "sidecar memory", 400)


def test_more_messages_may_be_on_their_way_than_files_are_usually_allowed() -> None:
    assert run_on_ranks(2, _many_with_few_files) == [True, True]


def _shapes(context: RankContext, way: str, dynamic: bool, expecting: bool) -> list[str]:
    said = []
    with started(context, way, [F, B]) as communicator, transport(communicator, way, [F, B], dynamic_shapes=dynamic) as link:
        for micro_batch, shape in enumerate([(4, 8), (4, 8), (8, 4), (64, 64)]):  # the third has the agreed number of bytes, the last more
            try:
                if context.rank == 0:
                    link.send(F, micro_batch, [torch.ones(shape)])
                else:
                    if expecting:
                        link.expect(F, micro_batch)
                    said.append(str(list(link.receive(F, micro_batch)[0].shape)))
            except PipelineShapeError as error:
                said.append(str(error))
        if not expecting:
            communicator.barrier("told")
    return said


@every_way
@pytest.mark.parametrize("expecting", [pytest.param(True, id="expected"), pytest.param(False, id="not expected")])
def test_another_shape_than_agreed_is_an_error_on_both_sides(way: str, expecting: bool) -> None:
    sender, receiver = run_on_ranks(2, _shapes, way, False, expecting)
    errors = [f"micro-batch {micro_batch} on edge f1 0>1 is float32 {shape}, the first one of as many rows was float32 [4, 8]; "
              "make all micro-batches alike, or set train.parallel.dynamic_shapes=true."
              for micro_batch, shape in ((2, [8, 4]), (3, [64, 64]))]
    assert sender == errors
    assert receiver == ["[4, 8]", "[4, 8]", *errors]


@every_way
def test_shapes_may_change_where_the_transport_was_opened_so(way: str) -> None:
    assert run_on_ranks(2, _shapes, way, True, True) == [[], ["[4, 8]", "[4, 8]", "[8, 4]", "[64, 64]"]]


def _disagree(context: RankContext, way: str) -> list[str]:
    said = []
    communicator = started(context, way, [F, B])
    for edges in ([F] if context.rank == 0 else [F, B], [Edge(0, 0, "self")], [Edge(0, 2, "out")]):
        try:
            transport(communicator, way, edges)
        except (RingError, ConfigError) as error:
            said.append(str(error))
    return said


@every_way
def test_ranks_that_name_other_edges_are_told_when_they_open(way: str) -> None:
    results = run_on_ranks(2, _disagree, way)
    assert results[0] == results[1]
    assert [text.split(";")[0] for text in results[0]] == [
        "the list of edges of ranks [1] differs from rank 0's", "edge self 0>0 does not join two of the ranks 0 to 1",
        "edge out 0>2 does not join two of the ranks 0 to 1"]


def _listeners() -> set[str]:
    return {connection.laddr.ip for connection in psutil.Process().net_connections("tcp") if connection.status == psutil.CONN_LISTEN}


def _sockets(context: RankContext) -> tuple[set[str], set[str], set[str]]:
    while_meeting: set[str] = set()
    receive = Reception.receive

    def look(self: Reception, *args: Any) -> Any:
        while_meeting.update(_listeners())
        return receive(self, *args)

    seams.replace(seams.RECEPTION_RECEIVE, look)
    with opened(context, "sidecar sockets", [F, B]):
        while_open = _listeners()
    with socket.create_server(("", 0)):
        return while_meeting, while_open, _listeners()


def test_the_sidecars_sockets_listen_on_loopback_where_all_ranks_are_on_one_host_and_only_until_these_have_met() -> None:
    for while_meeting, while_open, control in run_on_ranks(2, _sockets):
        assert while_meeting == {"127.0.0.1"}
        assert while_open == set()
        assert control == {"0.0.0.0"}


def _hidden(context: RankContext) -> tuple[str, list[float]]:
    if context.rank == 1:
        seams.replace(seams.NAMED_FILES_FOLDER, Path("/nonexistent"))  # a container that shows this rank another /dev/shm
    with opened(context, "sidecar memory", [F, B]) as (_, link):
        link.send(F if context.rank == 0 else B, 0, [torch.tensor([float(context.rank)])])
        return link.description, link.receive(B if context.rank == 0 else F, 0)[0].tolist()


def test_ranks_that_share_no_memory_take_sockets() -> None:
    assert run_on_ranks(2, _hidden) == [("sockets", [1.0]), ("sockets", [0.0])]


def _leftovers(context: RankContext, way: str) -> tuple[list[int], list[str]]:
    counts = []
    with started(context, way, [F, B]) as communicator:
        for _ in range(4):
            with transport(communicator, way, [F, B]) as link:
                link.send(F if context.rank == 0 else B, 0, [torch.ones(10**5)])
                link.receive(B if context.rank == 0 else F, 0)
                link.drain()
                communicator.barrier("done")
            del link
            gc.collect()
            counts.append(len(list(Path("/proc/self/fd").iterdir())))
            communicator.barrier("counted")
    return counts, [path.name for path in paths_of(context.token)]


@every_way
def test_a_closed_transport_leaves_no_files_open_and_none_behind(way: str) -> None:
    for counts, files in run_on_ranks(2, _leftovers, way):
        assert counts[1:] == [counts[1]] * 3
        assert files == []


def _memory(context: RankContext, way: str) -> bool:
    with opened(context, way, [F, B]) as (communicator, link):
        if context.rank == 1:
            for micro_batch in range(4):
                link.receive(F, micro_batch)
            communicator.barrier("seen")
            return True
        kept = []
        for micro_batch in range(4):
            values = np.ones(4 << 20, dtype=np.float32)  # 16 MB
            kept.append(weakref.ref(values))
            link.send(F, micro_batch, [torch.from_numpy(values)])
            del values
        until = time.monotonic() + 20
        while any(values() is not None for values in kept) and time.monotonic() < until:
            time.sleep(0.01)
        communicator.barrier("seen")
        return all(values() is None for values in kept)


@pytest.mark.parametrize("way", ["sidecar memory", "sidecar sockets"])
def test_memory_of_what_was_received_is_let_go_before_the_drain(way: str) -> None:
    assert run_on_ranks(2, _memory, way) == [True, True]


def _asked_by_any(context: RankContext, way: str) -> list[Any]:
    """Ranks 1 and 2 send to rank 0, which takes what comes; it also wakes itself, and sees that a rank has ended."""
    edges = [Edge(1, 0, "to"), Edge(2, 0, "to"), Edge(0, 1, "back"), Edge(0, 2, "back")]
    with started(context, way, edges) as communicator:
        link = transport(communicator, way, edges, dynamic_shapes=True)
        assert isinstance(link, SidecarTransport)
        found: list[Any] = []
        if context.rank:
            for number in range(20):
                link.send(edges[context.rank - 1], 0, [torch.tensor([context.rank, number])])
            link.receive(edges[context.rank + 1], 0)
        else:
            wake = os.eventfd(0, os.EFD_NONBLOCK)
            os.eventfd_write(wake, 1)
            for _ in range(40):
                while (one := link.receive_any(edges[:2], 0, wake=wake)) is None:
                    found.append(os.eventfd_read(wake))
                found.append((one[0].source, *one[1][0].tolist()))
            if 1 not in found:
                assert link.receive_any(edges[:2], 0, wake=wake) is None
            for edge in edges[2:]:
                link.send(edge, 0, [torch.zeros(1)])
            link.drain()
            os.close(wake)
        communicator.barrier("asked")
        link.close()
        communicator.barrier("closed")
    return found


@pytest.mark.parametrize("way", [MEMORY, SOCKETS])
def test_one_rank_receives_from_any_of_several_each_in_order_and_can_be_woken(way: str) -> None:
    found, *_ = run_on_ranks(3, _asked_by_any, way)
    messages = [one for one in found if one != 1]
    for rank in (1, 2):
        assert [one for one in messages if one[0] == rank] == [(rank, rank, number) for number in range(20)]


def _asked_by_one_that_ends(context: RankContext, way: str) -> str:
    edges = [Edge(1, 0, "to"), Edge(2, 0, "to")]
    communicator = started(context, way, edges)
    link = transport(communicator, way, edges, dynamic_shapes=True)
    assert isinstance(link, SidecarTransport)
    if context.rank == 2:
        os._exit(7)
    if context.rank == 1:
        signal.pause()  # until the test ends it
    with pytest.raises(PeerSilent, match="rank 2 has ended"):
        link.receive_any(edges, 0)
    return "seen"


@pytest.mark.parametrize("way", [MEMORY, SOCKETS])
def test_a_rank_that_receives_from_any_sees_that_one_of_them_has_ended(way: str) -> None:
    assert run_on_ranks(3, _asked_by_one_that_ends, way, doomed=(1, 2))[0] == "seen"
