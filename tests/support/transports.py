"""Opening a transport on a rank of a test, whichever way its bytes go: ``with opened(context, "sidecar sockets", edges) as ...``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sparkring.conf.schema import TransportName
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import messages_by_horovod
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.catalogue import TRANSPORT_NAMES, open_transport
from sparkring.pipelines.parallel.transports.horovod import pairs
from sparkring.pipelines.parallel.transports.linked import LinkedTransport

MEMORY, SOCKETS = "sidecar memory", "sidecar sockets"
WAYS = (*(kind for kind in TRANSPORT_NAMES if kind != "sidecar"), MEMORY, SOCKETS)
"""Every transport, and the sidecar both with and without shared memory."""


def kind_of(way: str) -> TransportName:
    """The transport of a way."""
    return next(kind for kind in TRANSPORT_NAMES if way.split(maxsplit=1)[0] == kind)


def started(context: RankContext, way: str, edges: Sequence[Edge]) -> Communicator:
    """The communicator that this way needs."""
    context = replace(context, shared_memory=way != SOCKETS)
    by_horovod = messages_by_horovod(kind_of(way))
    return Communicator(context, extra_sets=pairs(edges) if by_horovod else (), messages_by_horovod=by_horovod)


def transport(communicator: Communicator, way: str, edges: Sequence[Edge], *, dynamic_shapes: bool = False) -> LinkedTransport:
    """The transport itself, whether or not the ring was started for this way alone."""
    context = communicator.context
    communicator.context = replace(context, shared_memory=context.shared_memory and way != SOCKETS)
    link = open_transport(kind_of(way), communicator, edges, dynamic_shapes=dynamic_shapes)
    communicator.context = context
    return link


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
