"""Messages between stages beside Horovod: shared memory within a host, TCP connections of its own between hosts.

    ranks 0 1 | 2    on hosts 0 0 | 1     edges 0>1 and 1>0 in shared memory, 1>2 and 2>1 by sockets

Neither Horovod's cycle nor an allreduce delays them. Without shared memory all messages go by sockets.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from sparkring.conf.schema import TransportName
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.transports import memory, sockets
from sparkring.pipelines.parallel.transports.base import Edge, Link, canonical_edges
from sparkring.pipelines.parallel.transports.linked import LinkedTransport
from sparkring.pipelines.parallel.transports.memory import MemoryLink
from sparkring.pipelines.parallel.transports.memory_connect import open_memory_links
from sparkring.pipelines.parallel.transports.signals import EdgeEnded, LinkTimeout
from sparkring.pipelines.parallel.transports.socket_connect import open_socket_links
from sparkring.pipelines.parallel.transports.sockets import SocketLink


class SidecarTransport(LinkedTransport):
    """The ``sidecar`` transport. Every rank of the ring opens it, with the same edges."""

    name: TransportName = "sidecar"

    def __init__(self, communicator: Communicator, edges: Sequence[Edge], *, dynamic_shapes: bool = False,
                 shared_memory: bool | None = None) -> None:
        """Open it on any communicator.

        Args:
            communicator: The joined ring.
            edges: All edges of the job.
            dynamic_shapes: Whether the messages of an edge may differ in their shapes.
            shared_memory: Whether ranks of one host may share memory; None: the context decides.
        Raises:
            RingError: ranks name different edges.
            EnvironmentProblem: ranks cannot reach each other; or there are several hosts, and HOROVOD_GLOO_IFACE names no interface.
        """
        context = communicator.context
        edges = canonical_edges(edges, size=context.size)
        communicator.require_equal(repr((edges, dynamic_shapes)).encode(), what="the list of edges")
        links: dict[int, Link] = {}
        sharing = context.shared_memory if shared_memory is None else shared_memory
        in_memory = [edge for edge in edges if sharing and context.hosts[edge.source] == context.hosts[edge.target]]
        if in_memory:
            opened = open_memory_links(communicator, in_memory)
            in_memory = [] if opened is None else in_memory
            links.update(opened or {})
        by_sockets = [edge for edge in edges if edge not in in_memory]
        if by_sockets:
            links.update(open_socket_links(communicator, by_sockets))
        self._turn = 0
        self.description = " and ".join(["shared memory"] * bool(in_memory) + ["sockets"] * bool(by_sockets)) or "nothing"
        super().__init__(communicator, edges, links, dynamic_shapes=dynamic_shapes)

    def receive_any(self, edges: Sequence[Edge], micro_batch: int, *, wake: int | None = None) -> tuple[Edge, list[Tensor]] | None:
        """Wait for the next message from any of several ranks, each in its turn.

        All edges go by memory, or all by sockets: a transport for this is opened with ``shared_memory`` on one host only.

        Args:
            edges: Edges to this rank; several times with the same ones.
            micro_batch: The messages' number.
            wake: A descriptor of the caller's; once it can be read, the wait ends.
        Returns:
            The edge and the message's tensors; None if ``wake`` ended the wait.
        Raises:
            PeerSilent: no message came within the context's deadline, or a rank has ended.
        """
        began = time.monotonic()
        places = range(self._turn, self._turn + len(edges))
        inward = [(edge, self._inward[edge]) for edge in (edges[place % len(edges)] for place in places)]
        by_memory = {edge: link for edge, link in inward if isinstance(link, MemoryLink)}
        by_sockets = {edge: link for edge, link in inward if isinstance(link, SocketLink)}
        assert not (by_memory and by_sockets), "one wait, one kind of link"
        self.journal.note("receive from any")
        until = began + self._deadline_s
        try:
            edge = (memory.first_of(by_memory, micro_batch, until, wake=wake) if by_memory else
                    sockets.first_of(by_sockets, micro_batch, until, wake=wake))
        except EdgeEnded as late:
            self._silent("receiving", late.edge, micro_batch, late.edge.source, ended=late.ended, began=began)
        except LinkTimeout:
            self._silent("receiving", edges[0], micro_batch, edges[0].source, ended=None, began=began)
        if edge is None:
            return None
        self._turn = edges.index(edge) + 1
        return edge, self.receive(edge, micro_batch)
