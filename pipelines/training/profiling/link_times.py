"""Seconds of sums over groups of ranks and of messages between two ranks, measured in a ring that was started for it.

    sums       over the first 2, 3, 4, ... ranks of the fullest host, and over one rank per host, by training's reducer
    hops       round trips between two ranks of that host, and between rank 0 and the next host's first rank, by each transport

Tensors lie where training has them, on the rank's device. A message takes half of its round trip. In that time the sender is busy
during ``send``, and the receiver for the processor time of ``receive``, which does not count its wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypedDict, get_args

import torch

from sparkring.conf.schema import RingConfig, TransportName
from sparkring.pipelines.parallel.allreduce.gradients import OpenGradientReducer, open_gradient_reducer
from sparkring.pipelines.parallel.clock import clock_of
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Ranks, leaders
from sparkring.pipelines.parallel.transports.base import Edge, Transport
from sparkring.pipelines.parallel.transports.catalogue import TRANSPORT_NAMES, open_transport

SIZES = (4 << 10, 256 << 10, 4 << 20, 16 << 20)
"""Bytes of a sum or message."""
WARM_UP, REPETITIONS = 2, 7
MOST_GROUPS = 6
"""Groups of up to this many ranks are all measured; of larger ones, powers of two and the largest."""
LinkScope = Literal["local", "between"]
LINK_SCOPES: tuple[LinkScope, ...] = get_args(LinkScope)
HopPart = Literal["whole", "send", "receive"]


class OpenTransport(Protocol):
    """Opens a transport of one kind."""

    def __call__(self, communicator: Communicator, edges: Sequence[Edge], *,
                 dynamic_shapes: bool = False) -> AbstractContextManager[Transport]:
        """Open it."""
        ...


@dataclass(frozen=True)
class MeasuredBackends:
    """The transports and the reducer to measure; a benchmark may pass others than training's."""

    transports: tuple[OpenTransport, ...] = tuple(partial(open_transport, kind) for kind in TRANSPORT_NAMES)
    open_gradient_reducer: OpenGradientReducer = open_gradient_reducer


TRAINING_BACKENDS = MeasuredBackends()


def backends_of(ring: RingConfig) -> MeasuredBackends:
    """All transports, and the reducer as it sums with these keys."""
    return MeasuredBackends(open_gradient_reducer=partial(open_gradient_reducer, ring=ring))


class LinkSeconds(TypedDict):
    """Seconds of each repetition by bytes; plain values, as a rank returns them."""

    where: LinkScope
    kind: TransportName | Literal["sum"]
    """``sum``, or the name of a transport."""
    part: HopPart
    """The part of a message that was timed."""
    group: int
    """Number of ranks that take part."""
    seconds: list[tuple[int, list[float]]]


def extra_sets(context: RankContext) -> list[Ranks]:
    """The process sets that the measurements need."""
    return [*(group for _, group in _groups(context)), *(pair for _, pair in _pairs(context))]


def time_links(communicator: Communicator, backends: MeasuredBackends = TRAINING_BACKENDS) -> list[LinkSeconds]:
    """Measure all links; every rank of the ring calls this.

    Figures of ``local`` links count from the first rank of ``fullest_host``, others from rank 0.

    Args:
        communicator: A communicator that was started with ``extra_sets`` and ``messages_by_horovod=True``.
        backends: The transports and the reducer to measure.
    """
    context = communicator.context
    found = [_time_sums(communicator, backends, where, group) for where, group in _groups(context)]
    for where, pair in _pairs(context):
        edges = [Edge(pair[0], pair[1], "there"), Edge(pair[1], pair[0], "back")]
        for opening in backends.transports:
            with opening(communicator, edges, dynamic_shapes=True) as transport:
                found += _time_hops(communicator, transport, where, edges)
                transport.drain()
                communicator.barrier(f"links.{where}.{transport.name}")
    return found


def fullest_host(hosts: Sequence[int]) -> Ranks:
    """The ranks of the host with the most ranks (the first such host), given each rank's host."""
    crowded = max(sorted(set(hosts)), key=hosts.count)
    return tuple(rank for rank, host in enumerate(hosts) if host == crowded)


def _groups(context: RankContext) -> Iterable[tuple[LinkScope, Ranks]]:
    together = fullest_host(context.hosts)
    for members in range(2, len(together) + 1):
        if members <= MOST_GROUPS or members == len(together) or members.bit_count() == 1:
            yield "local", together[:members]
    if len(leaders(context.hosts)) > 1:
        yield "between", leaders(context.hosts)


def _pairs(context: RankContext) -> Iterable[tuple[LinkScope, tuple[int, int]]]:
    one, *others = fullest_host(context.hosts)
    if others:
        yield "local", (one, others[0])
    if len(leaders(context.hosts)) > 1:
        yield "between", (0, leaders(context.hosts)[1])


def _time_sums(communicator: Communicator, backends: MeasuredBackends, where: LinkScope, group: Ranks) -> LinkSeconds:
    rank, device = communicator.context.rank, torch.device(communicator.context.device)
    result = LinkSeconds(where=where, kind="sum", part="whole", group=len(group), seconds=[])
    for size in SIZES:
        mine = group if rank in group else (rank,)
        reducer = backends.open_gradient_reducer(communicator, [size // 4], torch.float32, device=device, group=mine)
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


def _time_hops(communicator: Communicator, transport: Transport, where: LinkScope, edges: list[Edge]) -> list[LinkSeconds]:
    rank, device, (there, back) = communicator.context.rank, torch.device(communicator.context.device), edges
    parts: tuple[HopPart, ...] = ("whole", "send", "receive")
    results = [LinkSeconds(where=where, kind=transport.name, part=part, group=2, seconds=[]) for part in parts]
    for size in SIZES:
        tensor, taken = torch.zeros(size // 4, device=device), []
        communicator.barrier(f"links.hop.{where}.{transport.name}.{size}")
        for repetition in range(WARM_UP + REPETITIONS):
            if rank == there.source:
                taken.append(_there_and_back(transport, there, back, micro_batch=repetition % 2, tensor=tensor))
            elif rank == there.target:
                transport.send(back, repetition % 2, transport.receive(there, repetition % 2))
        for result, seconds in zip(results, zip(*taken[WARM_UP:], strict=True), strict=bool(taken)):
            result["seconds"].append((size, list(seconds)))
    return results


def _there_and_back(transport: Transport, there: Edge, back: Edge, *, micro_batch: int, tensor: torch.Tensor) -> tuple[float, float, float]:
    """Seconds of one way in all, of the busy sender, and of the busy receiver."""
    clock = clock_of(tensor.device)
    whole, began = clock.mark(), time.perf_counter()
    transport.expect(back, micro_batch)
    transport.send(there, micro_batch, [tensor])
    sent, busy = time.perf_counter(), time.thread_time()
    transport.receive(back, micro_batch)
    busy_s = time.thread_time() - busy
    return clock.seconds(whole, clock.mark()) / 2, sent - began, busy_s
