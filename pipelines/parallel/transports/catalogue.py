"""All transports behind one call, by the names in a config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from sparkring.conf.schema import TransportName
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.horovod import HorovodTransport
from sparkring.pipelines.parallel.transports.linked import LinkedTransport
from sparkring.pipelines.parallel.transports.sidecar import SidecarTransport

TRANSPORT_NAMES: tuple[TransportName, ...] = get_args(TransportName)


def open_transport(kind: TransportName, communicator: Communicator, edges: Sequence[Edge], *,
                   dynamic_shapes: bool = False) -> LinkedTransport:
    """Open a transport; every rank of the ring calls this at the same point, with the same edges.

    Args:
        kind: As in ``train.parallel.transport``.
        communicator: Started with the process sets and the cycle that this kind needs (``mesh.messages_by_horovod``).
        edges: All edges of the job.
        dynamic_shapes: Whether the messages of an edge may differ in their shapes.
    Raises:
        RingError: ranks name different edges.
        EnvironmentProblem: the ranks cannot reach each other.
    """
    match kind:
        case "sidecar":
            return SidecarTransport(communicator, edges, dynamic_shapes=dynamic_shapes)
        case "horovod":
            return HorovodTransport(communicator, edges, dynamic_shapes=dynamic_shapes)
