"""Opens sums by sockets: connects the ranks, measures the link where costs decide, and chooses each buffer's way."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import torch

from sparkring.conf.schema import RingConfig
from sparkring.pipelines.parallel.allreduce.costs import LinkCost, Way, cheapest, ways
from sparkring.pipelines.parallel.allreduce.error_feedback import EXACT_ELEMENTS, ErrorFeedback
from sparkring.pipelines.parallel.allreduce.exchange import Exchange
from sparkring.pipelines.parallel.allreduce.link_cost import measure_link
from sparkring.pipelines.parallel.allreduce.socket_sums import SocketSums
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.mesh import Ranks
from sparkring.pipelines.parallel.transports.socket_connect import open_connections

MEASURED = Way("ring")
"""How the link is measured."""


def open_socket_sums(communicator: Communicator, sizes: Sequence[int], dtype: torch.dtype, ranks: Ranks,
                     ring: RingConfig) -> tuple[SocketSums | None, str]:
    """Open sums of buffers over ``ranks``. Every rank of the ring calls this, whether it sums itself or not.

    Args:
        communicator: The joined ring, of several hosts.
        sizes: Elements of each buffer.
        dtype: Their type.
        ranks: Those that sum with each other; this rank may be another one of their hosts.
        ring: Its ``allreduce``, not ``horovod``, and ``wire``.
    Returns:
        The sums on the ranks that sum, if there are several; and the way in which they are made.
    Raises:
        EnvironmentProblem: ranks cannot reach each other.
    """
    context = communicator.context
    hosts = [context.hosts[rank] for rank in ranks]
    place = ranks.index(context.rank) if len(ranks) > 1 and context.rank in ranks else None
    peers = set() if place is None else _peers(place, ranks, hosts, [*ways(ring.allreduce, hosts, rounds_once=False), MEASURED])
    connections = {ranks.index(rank): each for rank, each in open_connections(communicator, peers).items()}
    link = measure_link(communicator, Exchange(connections) if connections else None, ranks)
    names = communicator.gather_bytes(socket.gethostname().encode(), name="allreduce.hosts")
    feedback = [ErrorFeedback(size, ring.wire) if ring.wire != "exact" and size >= EXACT_ELEMENTS else None for size in sizes]
    chosen = [cheapest(ways(ring.allreduce, hosts, rounds_once=kept is not None), size * (kept.dtype if kept else dtype).itemsize,
                       hosts, link) for size, kept in zip(sizes, feedback, strict=True)]
    description = describe(chosen, [size * dtype.itemsize for size in sizes], len(ranks), link, ring) if len(ranks) > 1 else "one rank"
    if place is None:
        return None, description
    plan = [way.rounds(place, hosts, size) for way, size in zip(chosen, sizes, strict=True)]
    return SocketSums(connections, [f"{rank} on {names[rank].decode()}" for rank in ranks], plan, feedback=feedback), description


def describe(chosen: Sequence[Way], num_bytes: Sequence[int], count: int, link: LinkCost, ring: RingConfig) -> str:
    """The ways in words, e.g. ``ring for 3 buffers up to 2.1 MB, ...``.

    Args:
        chosen: The way of each buffer.
        num_bytes: Its bytes.
        count: Ranks that sum, more than one.
        link: What decided.
        ring: Its ``wire``.
    """
    largest = {way: max(each for one, each in zip(chosen, num_bytes, strict=True) if one == way) for way in dict.fromkeys(chosen)}
    parts = [f"{way} for {chosen.count(way)} of up to {largest[way] / 1e6:.2g} MB" for way in sorted(largest, key=largest.__getitem__)]
    speed = f", {1 / link.byte_s / 1e6:.0f} MB/s" if link.byte_s else ""
    wire = "" if ring.wire == "exact" else f"; {ring.wire} with error feedback, not exact"
    return f"{count} ranks by sockets, buffers: {', '.join(parts)} ({link.message_s * 1e3:.2g} ms a message{speed}){wire}"


def _peers(place: int, ranks: Ranks, hosts: Sequence[int], among: Sequence[Way]) -> set[int]:
    """The ranks with which the one at ``place`` exchanges messages, by any of the ways."""
    rounds = [each for way in among for each in way.rounds(place, hosts, 1)]
    return {ranks[other] for each in rounds for other in (each.to, each.source) if other is not None}
