"""Opening a transport on a rank of a test, whichever way its bytes go: ``with opened(context, "sidecar sockets", edges) as ...``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.horovod import HorovodTransport, pairs
from sparkring.pipelines.parallel.transports.linked import LinkedTransport
from sparkring.pipelines.parallel.transports.sidecar import SidecarTransport

WAYS = ("horovod", "sidecar memory", "sidecar sockets")


def started(context: RankContext, way: str, edges: Sequence[Edge]) -> Communicator:
    """The communicator that this way needs."""
    context = replace(context, shared_memory=way != "sidecar sockets")
    return Communicator(context, extra_sets=pairs(edges), hops=True) if way == "horovod" else Communicator(context)


def transport(communicator: Communicator, way: str, edges: Sequence[Edge], *, dynamic_shapes: bool = False) -> LinkedTransport:
    """The transport itself."""
    kind = HorovodTransport if way == "horovod" else SidecarTransport
    return kind(communicator, edges, dynamic_shapes=dynamic_shapes)


@contextmanager
def opened(context: RankContext, way: str, edges: Sequence[Edge], *, dynamic_shapes: bool = False) -> Iterator[
        tuple[Communicator, LinkedTransport]]:
    """Both; left normally, all ranks have received what was sent."""
    with started(context, way, edges) as communicator, transport(communicator, way, edges, dynamic_shapes=dynamic_shapes) as link:
        yield communicator, link
        link.drain()
        communicator.barrier("received")


def both_ways(*pairs_of_ranks: tuple[int, int]) -> list[Edge]:
    """An edge forward and one backward for each pair."""
    return [edge for one, other in pairs_of_ranks for edge in (Edge(one, other, f"f{other}"), Edge(other, one, f"b{other}"))]
