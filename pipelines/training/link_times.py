"""Seconds of sums over groups of ranks and of messages between two ranks, measured in a ring that was started for it.

    sums       the first 2, 4, ... ranks of the first host, and one rank a host, by the reducer that training would use
    hops       between ranks 0 and 1, and between rank 0 and the first rank of the next host, there and back, by each transport
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, TypedDict

import torch

from sparkring.pipelines.parallel.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.horovod_transport import HorovodTransport
from sparkring.pipelines.parallel.mesh import Ranks, leaders
from sparkring.pipelines.parallel.reducer import open_reducer
from sparkring.pipelines.parallel.sidecar_transport import SidecarTransport
from sparkring.pipelines.parallel.transport import Edge, Transport

SIZES = (4 << 10, 256 << 10, 4 << 20, 16 << 20)
"""Bytes of a sum or message."""
WARM_UP, REPETITIONS = 2, 7
Where = Literal["local", "between"]


class LinkSeconds(TypedDict):
    """Seconds of each repetition by bytes; plain values, as a rank returns them."""

    where: Where
    kind: str
    """``sum``, or a transport."""
    group: int
    """Ranks that take part."""
    seconds: list[tuple[int, list[float]]]


def extra_sets(context: RankContext) -> list[Ranks]:
    """The process sets that the measurements need."""
    return [*(group for _, group in _groups(context)), *(pair for _, pair in _pairs(context))]


def time_links(communicator: Communicator) -> list[LinkSeconds]:
    """Measure; every rank of the ring calls this, and rank 0's figures count.

    Args:
        communicator: Started with ``extra_sets`` and for hops.
    """
    context = communicator.context
    found = [_time_sums(communicator, where, group) for where, group in _groups(context)]
    for where, pair in _pairs(context):
        edges = [Edge(pair[0], pair[1], "there"), Edge(pair[1], pair[0], "back")]
        for kind in (SidecarTransport, HorovodTransport):
            with kind(communicator, edges, dynamic_shapes=True) as transport:
                found.append(_time_hops(communicator, transport, where, edges))
                transport.drain()
                communicator.barrier(f"links.{where}.{transport.name}")
    return found


def _groups(context: RankContext) -> Iterable[tuple[Where, Ranks]]:
    on_first = context.hosts.count(0)
    for members in sorted({on_first} | {2 ** power for power in range(1, on_first.bit_length()) if 2 ** power < on_first}):
        if members > 1:
            yield "local", tuple(range(members))
    if len(leaders(context.hosts)) > 1:
        yield "between", leaders(context.hosts)


def _pairs(context: RankContext) -> Iterable[tuple[Where, tuple[int, int]]]:
    if context.hosts.count(0) > 1:
        yield "local", (0, 1)
    if len(leaders(context.hosts)) > 1:
        yield "between", (0, leaders(context.hosts)[1])


def _time_sums(communicator: Communicator, where: Where, group: Ranks) -> LinkSeconds:
    rank = communicator.context.rank
    result = LinkSeconds(where=where, kind="sum", group=len(group), seconds=[])
    for size in SIZES:
        mine = group if rank in group else (rank,)
        reducer = open_reducer(communicator, [size // 4], torch.float32, device=torch.device("cpu"), group=mine)
        seconds = []
        for repetition in range(WARM_UP + REPETITIONS):
            communicator.barrier(f"links.sum.{where}.{len(group)}.{size}.{repetition}")
            began = time.perf_counter()
            if rank in group:
                reducer.ready(0)
                reducer.finish()
            if repetition >= WARM_UP:
                seconds.append(time.perf_counter() - began)
        reducer.close()
        result["seconds"].append((size, seconds))
    return result


def _time_hops(communicator: Communicator, transport: Transport, where: Where, edges: list[Edge]) -> LinkSeconds:
    rank, (there, back) = communicator.context.rank, edges
    result = LinkSeconds(where=where, kind=transport.name, group=2, seconds=[])
    for size in SIZES:
        tensor, seconds = torch.zeros(size // 4), []
        communicator.barrier(f"links.hop.{where}.{transport.name}.{size}")
        for repetition in range(WARM_UP + REPETITIONS):
            began = time.perf_counter()
            if rank == there.source:
                transport.expect(back, repetition % 2)
                transport.send(there, repetition % 2, [tensor])
                transport.receive(back, repetition % 2)
            elif rank == there.target:
                transport.send(back, repetition % 2, transport.receive(there, repetition % 2))
            if repetition >= WARM_UP:
                seconds.append((time.perf_counter() - began) / 2)
        result["seconds"].append((size, seconds))
    return result
