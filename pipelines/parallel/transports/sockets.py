"""Messages between two ranks by a TCP connection of their own (stream.py), for ranks that share no memory.

    sender      gives the socket what it takes; the rest follows while it does other things
    receiver    reads while it waits, so nothing stands between the socket and the tensor

The connection also shows at once when the other rank has ended; that of a host that vanished shows nothing, so waits have deadlines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NoReturn

from torch import Tensor

from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.pump import LARGE_BYTES, Pump
from sparkring.pipelines.parallel.transports.signals import DrainFailed, EdgeEnded, LinkTimeout, MessageRefused, PeerEnded
from sparkring.pipelines.parallel.transports.stream import Stream
from sparkring.pipelines.parallel.transports.tensor_specs import TensorSpecs

_LOOK_AGAIN_S = 0.001
"""The kernel does not tell when the other host has received all."""


class SocketLink:
    """The link to one rank."""

    def __init__(self, stream: Stream, pump: Pump, edges: Sequence[Edge]) -> None:
        """Take the connection.

        Args:
            stream: The connection to the other rank.
            pump: It moves this connection's bytes, and those of the rank's other ones.
            edges: The edges between the two ranks, in any order; both number them alike.
        """
        self._stream, self._pump = stream, pump
        self._edges = sorted(edges)
        self._numbers = {edge: number for number, edge in enumerate(self._edges)}
        self._large: dict[tuple[Edge, int], TensorSpecs] = {}
        """The last message of an edge and number of rows, if it was large."""

    def send(self, edge: Edge, micro_batch: int, specs: TensorSpecs, tensors: Sequence[Tensor], *, rows: int) -> None:
        """See Link. Every message holds its specs, whatever the rows."""
        stream = self._stream
        with self._pump:
            if stream.end is None:
                stream.send((self._numbers[edge], micro_batch), specs, tensors)
        if stream.end is not None:
            self._raise_refusal()
            self._raise_end(stream.end)

    def refuse(self, edge: Edge, micro_batch: int, *, agreed: TensorSpecs, found: TensorSpecs, until: float) -> None:
        """See Link."""
        stream = self._stream
        with self._pump:
            stream.send((self._numbers[edge], micro_batch), agreed, [], refused=found)
        self.drain(until)
        with self._pump as pump:  # bytes on their way are lost if this rank ends now
            pump.wait(lambda: stream.end is not None or stream.acknowledged(), until, look_again_s=_LOOK_AGAIN_S)

    def has(self, edge: Edge, micro_batch: int) -> bool:
        """Whether a message is here."""
        return bool(self._stream.arrived.get((self._numbers[edge], micro_batch)))

    @property
    def end(self) -> Exception | None:
        """What ended the connection."""
        return self._stream.end

    @property
    def pump(self) -> Pump:
        """What moves the bytes of all links of the rank."""
        return self._pump

    def expect(self, edge: Edge, micro_batch: int, *, rows: int) -> None:
        """See Link."""
        specs = self._large.get((edge, rows))
        if specs is not None:
            with self._pump:
                self._stream.expect((self._numbers[edge], micro_batch), specs)

    def receive(self, edge: Edge, micro_batch: int, until: float, *, rows: int) -> tuple[TensorSpecs, list[Tensor]]:
        """See Link."""
        stream, key = self._stream, (self._numbers[edge], micro_batch)
        queue = stream.arrived.setdefault(key, deque())
        if not queue:
            with self._pump as pump:
                pump.wait(lambda: bool(queue) or stream.end is not None, until)
        if not queue:
            assert stream.end is not None
            self._raise_end(stream.end)
        message = queue.popleft()
        if message.refused is not None:
            raise MessageRefused(edge, micro_batch, agreed=message.specs, found=message.refused)
        if message.specs.nbytes >= LARGE_BYTES:
            self._large[edge, rows] = message.specs
        return message.specs, message.tensors

    def drain(self, until: float) -> None:
        """See Link."""
        stream = self._stream
        try:
            with self._pump as pump:
                pump.wait(lambda: stream.first_departing is None or stream.end is not None, until)
        except LinkTimeout:
            self._raise_not_taken(None)
        if stream.first_departing is not None:
            self._raise_not_taken(stream.end)

    def close(self) -> None:
        """See Link. All links of the rank's pump end with the first."""
        self._pump.close()

    def _raise_not_taken(self, end: Exception | None) -> NoReturn:
        assert self._stream.first_departing is not None
        number, micro_batch = self._stream.first_departing
        raise DrainFailed(self._edges[number], micro_batch, end if isinstance(end, PeerEnded) else None) from None

    def _raise_end(self, end: Exception) -> NoReturn:
        raise PeerEnded(end.how) if isinstance(end, PeerEnded) else end

    def _raise_refusal(self) -> None:
        """Report a message that the other rank refused before it ended: it explains the end."""
        for (number, micro_batch), queue in self._stream.arrived.items():
            for message in queue:
                if message.refused is not None:
                    raise MessageRefused(self._edges[number], micro_batch, agreed=message.specs, found=message.refused)


def first_of(links: Mapping[Edge, SocketLink], micro_batch: int, until: float, *, wake: int | None) -> Edge | None:
    """Wait for a message on one of several edges of one pump; as ``memory.first_of``."""
    pump = next(iter(links.values())).pump
    if wake is not None:
        pump.wake_by(wake)
    with pump:
        pump.wait(lambda: pump.was_woken or any(link.has(edge, micro_batch) or link.end for edge, link in links.items()), until)
        woken, pump.was_woken = pump.was_woken, False
    for edge, link in links.items():
        if link.has(edge, micro_batch):
            pump.was_woken = woken  # for the next wait
            return edge
    for edge, link in links.items():
        if isinstance(link.end, PeerEnded):
            raise EdgeEnded(edge, link.end)
        if link.end is not None:
            raise link.end
    return None
