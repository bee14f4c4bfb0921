"""Opens sums by sockets: connects the ranks, measures what each way costs, and chooses the cheapest for each buffer."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

import torch

from sparkring.conf.schema import RingConfig, WireType
from sparkring.pipelines.parallel.allreduce.between import Awaited
from sparkring.pipelines.parallel.allreduce.costs import Cost, Way, cheapest, ways
from sparkring.pipelines.parallel.allreduce.error_feedback import feedback_of
from sparkring.pipelines.parallel.allreduce.exchange import Exchange
from sparkring.pipelines.parallel.allreduce.measured_costs import measure_costs
from sparkring.pipelines.parallel.allreduce.socket_sums import SocketSums
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.mesh import Ranks
from sparkring.pipelines.parallel.transports.socket_connect import open_connections


def open_socket_sums(communicator: Communicator, sizes: Sequence[int], dtype: torch.dtype, ranks: Ranks,
                     ring: RingConfig) -> tuple[SocketSums | None, str]:
    """Open sums of buffers over ``ranks``. Every rank of the ring calls this, whether it sums itself or not.

    Args:
        communicator: The joined ring, of several hosts.
        sizes: Elements of each buffer.
        dtype: Their type.
        ranks: Those that sum with each other, ascending; this rank may be another one of their hosts.
        ring: Its ``allreduce``, not ``horovod``, and ``wire``.
    Returns:
        The sums on the ranks that sum, if there are several; and the way in which they are made, in words.
    Raises:
        EnvironmentProblem: ranks cannot reach each other.
    """
    context = communicator.context
    hosts = [context.hosts[rank] for rank in ranks]
    place = ranks.index(context.rank) if context.rank in ranks and len(ranks) > 1 else None
    feedback = [feedback_of(ring.wire, size) for size in sizes]
    among = ways(ring.allreduce, hosts, rounds_once=ring.wire != "exact")
    exchange = _connect(communicator, ranks, place, among)
    sent = [size * (dtype.itemsize if kept is None else kept.dtype.itemsize) for size, kept in zip(sizes, feedback, strict=True)]
    costs = measure_costs(communicator, exchange, ranks, among, largest=max(sent, default=0))
    if len(ranks) == 1:
        return None, "one rank"
    chosen = [cheapest(costs, num_bytes) if costs else among[0] for num_bytes in sent]
    description = describe(chosen, [size * dtype.itemsize for size in sizes], len(ranks), costs, wire=ring.wire)
    if exchange is None or place is None:
        return None, description
    plan = [way.rounds(place, hosts, size) for way, size in zip(chosen, sizes, strict=True)]
    return SocketSums(exchange, plan, feedback), description


def describe(chosen: Sequence[Way], num_bytes: Sequence[int], count: int, costs: Mapping[Way, Cost], *,
             wire: WireType) -> str:
    """The ways in words: which is taken for how many buffers, of up to which size, and what it costs.

    Args:
        chosen: The way of each buffer.
        num_bytes: Its bytes.
        count: Ranks that sum, more than one.
        costs: What decided, if there was a choice.
        wire: Of ``train.ring``.
    """
    largest = {way: max(each for one, each in zip(chosen, num_bytes, strict=True) if one == way) for way in chosen}
    parts = [f"{way} for {chosen.count(way)} of up to {largest[way] / 1e6:.3g} MB" + (f" ({_speed(costs[way])})" if costs else "")
             for way in sorted(largest, key=largest.__getitem__)]
    rounded = "" if wire == "exact" else f"; {wire} with error feedback, not exact"
    return f"{count} ranks by sockets, buffers: {', '.join(parts)}{rounded}"


def _speed(cost: Cost) -> str:
    return f"{cost.start_s * 1e3:.2g} ms, {cost.bytes_s / 1e6:.0f} MB/s"


def _connect(communicator: Communicator, ranks: Ranks, place: int | None, among: Sequence[Way]) -> Exchange | None:
    """Connect the rank at ``place`` with those that it sums with by any of the ways; None if it does not sum. All ranks call this."""
    hosts = [communicator.context.hosts[rank] for rank in ranks]
    rounds = [] if place is None else [each for way in among for each in way.rounds(place, hosts, 1)]
    peers = {ranks[other] for each in rounds for other in (each.to, each.source) if other is not None}
    connected = open_connections(communicator, peers)
    names = communicator.gather_bytes(socket.gethostname().encode(), name="allreduce.hosts")
    if place is None:
        return None
    who = {ranks.index(rank): Awaited(f"rank {rank} on {names[rank].decode()}", (rank,)) for rank in connected}
    return Exchange({ranks.index(rank): connection for rank, connection in connected.items()}, who)
