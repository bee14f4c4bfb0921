"""Messages between stages over Horovod itself: one process set for each pair of ranks that share an edge.

A message is an allgather to which the receiver contributes no rows. That is Horovod's quickest way to move bytes between two
ranks: its response cache holds allgathers (not broadcasts), so a hop costs one cycle once both ranks have posted.

    sender     allgather_async(payload, name="hop.0>1.f1.3.1")     done when the receiver has posted
    receiver   allgather_async(no rows, name="hop.0>1.f1.3.1")     done with the payload

Names hold edge, micro-batch and part. Horovod numbers unnamed operations per process, so ranks with different histories would never
match. A name may be in flight only once, so a message must be received before one of its number is sent again. Horovod does all
operations in one thread, one after the other: a large allreduce delays the hops beside it. On GPUs payloads are gathered by NCCL
and stay on their device, headers are gathered by Gloo.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor

from sparkring.conf.schema import TransportName
from sparkring.errors import PipelineShapeError, RingError
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.horovod_handles import first_sentence
from sparkring.pipelines.parallel.mesh import Ranks
from sparkring.pipelines.parallel.transports.base import Edge, canonical_edges
from sparkring.pipelines.parallel.transports.framed import HEADER, PAYLOAD, FramedLink, MessageKey
from sparkring.pipelines.parallel.transports.linked import LinkedTransport
from sparkring.pipelines.parallel.transports.signals import DrainFailed, PeerEnded, seconds_left

NAP_S, LONGEST_NAP_S = 0.0001, 0.001
MAX_BYTES = (1 << 31) - 1
"""Horovod counts elements in int32."""


def pairs(edges: Sequence[Edge]) -> tuple[Ranks, ...]:
    """The process sets that the edges need: one per pair of ranks, however many edges join them."""
    return tuple(sorted({(min(edge.source, edge.target), max(edge.source, edge.target)) for edge in edges}))


class HorovodWire:
    """Named allgathers on process sets of two ranks."""

    def __init__(self, communicator: Communicator, edges: Sequence[Edge]) -> None:
        """Find the process set of each edge; the communicator must have been started with ``pairs(edges)``."""
        self._opening = communicator.next_serial()
        self._sets = {edge: communicator.process_set(pairs([edge])[0]) for edge in edges if communicator.context.rank in edge[:2]}
        self._outgoing: dict[MessageKey, int] = {}
        self._posted: dict[MessageKey, int] = {}
        self._nothing = {HEADER: torch.empty(0, dtype=torch.uint8),
                         PAYLOAD: torch.empty(0, dtype=torch.uint8, device=communicator.context.device)}  # where the sender has it

    def send(self, key: MessageKey, data: Tensor) -> None:
        """See Wire.

        Raises:
            RingError: the last message of this number was not received yet.
            PipelineShapeError: more bytes than Horovod can count.
        """
        if len(data) > MAX_BYTES:
            raise PipelineShapeError(f"a message of {len(data)} bytes on edge {key.edge} is more than the {MAX_BYTES} that Horovod counts; "
                                     "make micro-batches smaller, or take the sidecar transport.")
        self._reap()
        if key in self._outgoing:
            raise RingError(f"micro-batch {key.number} on edge {key.edge} is in flight already: rank {key.edge.target} has not received "
                            "the last one; receive it before sending it again.")
        self._outgoing[key] = self._gather(key, data)

    def post(self, key: MessageKey) -> None:
        """See Wire."""
        if key not in self._posted:
            self._posted[key] = self._gather(key, self._nothing[key.part])

    def wait(self, key: MessageKey, until: float) -> Tensor:
        """See Wire. Sleeps between looks: ``hvd.synchronize`` would spin on a core that others need."""
        handle, nap = self._posted[key], NAP_S
        while not hvd.poll(handle):
            seconds_left(until)
            time.sleep(nap)
            nap = min(nap * 1.05, LONGEST_NAP_S)  # it takes about 50 naps to become long
        del self._posted[key]
        return self._result(handle)

    def drain(self, until: float) -> None:
        """See Wire."""
        nap = NAP_S
        while True:
            try:
                self._reap()
            except PeerEnded as ended:
                key = next(iter(self._outgoing))
                raise DrainFailed(key.edge, key.number, ended) from None
            if not self._outgoing:
                return
            if time.monotonic() > until:
                key = next(iter(self._outgoing))
                raise DrainFailed(key.edge, key.number)
            time.sleep(nap)
            nap = min(nap * 1.05, LONGEST_NAP_S)

    def close(self) -> None:
        """Release nothing: Horovod ends with the communicator."""

    def _gather(self, key: MessageKey, data: Tensor) -> int:
        name = f"hop.{self._opening}.{key.edge.source}>{key.edge.target}.{key.edge.name}.{key.number}.{key.part}"
        try:
            with torch.inference_mode(mode=False):  # Horovod's thread resizes the result, which inference tensors forbid
                handle: int = hvd.allgather_async(data, name=name, process_set=self._sets[key.edge])
        except (HorovodInternalError, ValueError) as error:
            raise PeerEnded(first_sentence(error), whole_ring=True) from None
        return handle

    def _reap(self) -> None:
        """Forget the sends that are done."""
        for key in [key for key, handle in self._outgoing.items() if hvd.poll(handle)]:
            self._result(self._outgoing[key])
            del self._outgoing[key]

    def _result(self, handle: int) -> Tensor:
        try:
            result: Tensor = hvd.synchronize(handle)
        except HorovodInternalError as error:
            raise PeerEnded(first_sentence(error), whole_ring=True) from None
        return result


class HorovodTransport(LinkedTransport):
    """The ``horovod`` transport. Every rank of the ring opens it, with the same edges."""

    name: TransportName = "horovod"
    carries_devices = True

    def __init__(self, communicator: Communicator, edges: Sequence[Edge], *, dynamic_shapes: bool = False) -> None:
        """Open it on a communicator that was started with ``extra_sets=pairs(edges), messages_by_horovod=True``.

        Raises:
            RingError: ranks name different edges.
        """
        edges = canonical_edges(edges, size=communicator.context.size)
        communicator.require_equal(repr((edges, dynamic_shapes)).encode(), what="the list of edges")
        link = FramedLink(HorovodWire(communicator, edges), token=communicator.context.token, dynamic_shapes=dynamic_shapes,
                          device=torch.device(communicator.context.device))
        peers = set(range(communicator.context.size)) - {communicator.context.rank}
        super().__init__(communicator, edges, dict.fromkeys(peers, link), dynamic_shapes=dynamic_shapes)
