"""Messages between two ranks of a ring: what an executor of stages may count on, whatever carries them.

A message is a list of tensors on an *edge* (who sends, who receives, and a name that says which border and direction) in a
*slot* (its micro-batch: the same names step after step). Sending and announcing a receive never wait, so
ranks may act in any order; only ``receive`` and ``drain`` wait, and they end: with what was sent, with ``PeerSilent`` at the
deadline or when the other rank has ended, or with ``PipelineShapeError``.

    send ----> | link: framed on Horovod or Gloo, or shared memory | ----> receive
               |   contract: of an edge's messages of as many rows, |
               |   the first fixes dtypes and shapes, unless shapes |
               |   are dynamic; so only the first one tells them    |

All ranks open a transport with the same edges. One thread uses it. On a GPU, messages are staged through the host's memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, NoReturn, Protocol, Self

import torch
from torch import Tensor

from sparkring.errors import ConfigError, PeerSilent, PipelineShapeError
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.transports.journal import Journal, LinkTimeout, PeerEnded
from sparkring.pipelines.parallel.transports.payload import TensorSpecs

MAX_SLOTS = 1 << 14


class Edge(NamedTuple):
    """One direction across one border between two ranks."""

    source: int
    target: int
    name: str
    """Chunk border and direction, e.g. ``f1`` or ``b1``: with two stages the next rank is also the previous one."""

    def __str__(self) -> str:
        return f"{self.name} {self.source}>{self.target}"


class _Message(NamedTuple):
    """One message, as the journal names it."""

    edge: Edge
    slot: int

    def __str__(self) -> str:
        return f"edge {self.edge} slot {self.slot}"


class Transport(Protocol):
    """What carries messages between stages."""

    name: str
    journal: Journal
    """What this rank did last, for errors; whoever uses the transport adds to it."""

    def send(self, edge: Edge, slot: int, tensors: Sequence[Tensor], *, rows: int = 0) -> None:
        """Send ``tensors``; never waits. They must not change before ``drain``. A slot is free again when its message was received.

        Args:
            edge: From this rank.
            slot: Of the edge.
            tensors: Dense ones.
            rows: What tells kinds of messages apart, each with shapes of its own: sender and receiver say the same of a message.
        Raises:
            PipelineShapeError: they are not what the first message of this kind was, and shapes are not dynamic; the receiver is told.
        """

    def expect(self, edge: Edge, slot: int, *, rows: int = 0) -> None:
        """Announce that the next message of this slot will be received: it can arrive meanwhile. Optional; never waits."""

    def receive(self, edge: Edge, slot: int, *, rows: int = 0) -> list[Tensor]:
        """Wait for the oldest message of this slot and return its tensors, with the dtypes and shapes that were sent.

        Raises:
            PeerSilent: it did not come within the context's deadline, or the sender has ended.
            PipelineShapeError: the sender had other shapes than were agreed.
        """

    def drain(self) -> None:
        """Wait until nothing that was sent needs its tensors any more. Call it before waiting for ranks by other means.

        Raises:
            PeerSilent: some rank did not take a message within the deadline.
        """

    def close(self) -> None:
        """Let go of everything, without waiting; ``drain`` first if what was sent is still wanted."""


class Link(Protocol):
    """What carries messages to and from some of the ranks. Waits raise Silence at ``until`` (monotonic), and Ended."""

    def send(self, edge: Edge, slot: int, specs: TensorSpecs, tensors: Sequence[Tensor], *, rows: int) -> None:
        """Send; never waits. Raises Refused if the other rank has refused a message and ended since."""

    def refuse(self, edge: Edge, slot: int, *, agreed: TensorSpecs, found: TensorSpecs, until: float) -> None:
        """Tell the receiver of this slot that its message is ``found`` and will not come; waits until it is told."""

    def expect(self, edge: Edge, slot: int, *, rows: int) -> None:
        """Get ready for a message; never waits."""

    def receive(self, edge: Edge, slot: int, until: float, *, rows: int) -> tuple[TensorSpecs, list[Tensor]]:
        """Wait for a message. Raises Refused if the sender refused it."""

    def drain(self, until: float) -> None:
        """Wait until no message needs its tensors."""

    def close(self) -> None:
        """Let go of everything, without waiting."""


class MessageRefused(Exception):
    """The sender must not send a message, because it is ``found`` where ``agreed`` was."""

    def __init__(self, edge: Edge, slot: int, *, agreed: TensorSpecs, found: TensorSpecs) -> None:
        self.edge, self.slot, self.agreed, self.found = edge, slot, agreed, found
        super().__init__()


class DrainFailed(Exception):
    """Some messages were not taken until the deadline; the first of them is named. ``ended`` if the rank is gone."""

    def __init__(self, edge: Edge, slot: int, ended: PeerEnded | None = None) -> None:
        self.edge, self.slot, self.ended = edge, slot, ended
        super().__init__()


class LinkedTransport:
    """A transport made of links: keeps the shape contract, the journal and the deadline. Use as a context manager."""

    name = "links"
    description = ""
    """What carries the messages, in words, where the name does not say it."""

    def __init__(self, communicator: Communicator, edges: Sequence[Edge], links: Mapping[int, Link], *, dynamic_shapes: bool) -> None:
        """Take the links by the rank that they reach."""
        context = communicator.context
        self._rank, self._deadline_s, self._device = context.rank, context.deadline_s, torch.device(context.device)
        self._links, self._dynamic = links, dynamic_shapes
        self._outward = {edge: links[edge.target] for edge in edges if edge.source == context.rank}
        self._inward = {edge: links[edge.source] for edge in edges if edge.target == context.rank}
        self._agreed: dict[tuple[Edge, int], TensorSpecs] = {}
        """What the first message of an edge and a number of rows was."""
        self.journal = Journal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            self.close()

    def send(self, edge: Edge, slot: int, tensors: Sequence[Tensor], *, rows: int = 0) -> None:
        """See Transport."""
        link = self._outward.get(edge) or self._foreign(edge, "send")
        specs = TensorSpecs.of(tensors)
        if not self._dynamic:
            agreed = self._agreed.setdefault((edge, rows), specs)
            if specs != agreed:
                self._refuse(link, edge, slot, agreed=agreed, found=specs)
            specs = agreed  # it has computed its offsets already
        self.journal.note("send", _Message(edge, slot))
        try:
            link.send(edge, slot, specs, tensors, rows=rows)
        except PeerEnded as ended:
            self._silent(edge, slot, edge.target, verb="to send", ended=ended)
        except MessageRefused as refused:
            raise self._told_of(refused) from None

    def expect(self, edge: Edge, slot: int, *, rows: int = 0) -> None:
        """See Transport."""
        link = self._inward.get(edge) or self._foreign(edge, "receive")
        try:
            link.expect(edge, slot, rows=rows)
        except PeerEnded as ended:
            self._silent(edge, slot, edge.source, verb="to expect", ended=ended)

    def receive(self, edge: Edge, slot: int, *, rows: int = 0) -> list[Tensor]:
        """See Transport."""
        link = self._inward.get(edge) or self._foreign(edge, "receive")
        self.journal.note("receive", _Message(edge, slot))
        began = time.monotonic()
        try:
            _, tensors = link.receive(edge, slot, began + self._deadline_s, rows=rows)
        except PeerEnded as ended:
            self._silent(edge, slot, edge.source, verb="to receive", ended=ended, began=began)
        except LinkTimeout:
            self._silent(edge, slot, edge.source, verb="to receive", ended=None, began=began)
        except MessageRefused as refused:
            raise self._told_of(refused) from None
        return tensors if self._device.type == "cpu" else [tensor.to(self._device) for tensor in tensors]

    def drain(self) -> None:
        """See Transport."""
        began = time.monotonic()
        self.journal.note("drain")
        for link in self._distinct():
            try:
                link.drain(began + self._deadline_s)
            except DrainFailed as late:
                self._silent(late.edge, late.slot, late.edge.target, verb="to be rid of", ended=late.ended, began=began)

    def close(self) -> None:
        """See Transport."""
        for link in self._distinct():
            link.close()

    def _distinct(self) -> list[Link]:
        return list({id(link): link for link in self._links.values()}.values())

    def _refuse(self, link: Link, edge: Edge, slot: int, *, agreed: TensorSpecs, found: TensorSpecs) -> NoReturn:
        """Tell the receiver, for half the deadline at most, and raise."""
        self.journal.note("refuse", _Message(edge, slot))
        with suppress(LinkTimeout, PeerEnded, DrainFailed):  # a receiver that cannot be told will hear of it by our end
            link.refuse(edge, slot, agreed=agreed, found=found, until=time.monotonic() + self._deadline_s / 2)
        raise self._other_shape(edge, slot, agreed=agreed, found=found)

    def _told_of(self, refused: MessageRefused) -> PipelineShapeError:
        return self._other_shape(refused.edge, refused.slot, agreed=refused.agreed, found=refused.found)

    def _other_shape(self, edge: Edge, slot: int, *, agreed: TensorSpecs, found: TensorSpecs) -> PipelineShapeError:
        what = f"is {found}" if found.parts else "has other tensors"
        return PipelineShapeError(f"the message on edge {edge} in slot {slot} {what}, the first one of as many rows was {agreed}; "
                                  "make all micro-batches alike, or set train.parallel.dynamic_shapes=true.")

    def _silent(self, edge: Edge, slot: int, peer: int, *, verb: str, ended: PeerEnded | None, began: float | None = None) -> NoReturn:
        seconds = 0.0 if began is None else round(time.monotonic() - began, 1)
        raise PeerSilent(rank=self._rank, peer=peer, waited_for=f"{self.name} {verb} edge {edge} slot {slot}", seconds=seconds,
                         ended=ended.clause(peer) if ended else "", last_actions=self.journal.last()) from None

    def _foreign(self, edge: Edge, verb: str) -> NoReturn:
        known = sorted(self._outward if verb == "send" else self._inward)
        raise ConfigError(f"rank {self._rank} cannot {verb} on edge {edge}: the transport was opened with "
                          f"{', '.join(map(str, known)) or 'no edges to ' + verb + ' on'}; open it with all edges of the schedule.")


def canonical_edges(edges: Sequence[Edge], *, size: int) -> list[Edge]:
    """The edges, sorted and without doubles.

    Raises:
        ConfigError: an edge that leads from a rank to itself, or to one that is not there.
    """
    for edge in edges:
        if edge.source == edge.target or not (0 <= edge.source < size and 0 <= edge.target < size):
            raise ConfigError(f"edge {edge} does not join two of the ranks 0 to {size - 1}; a stage hands tensors to itself without one.")
    return sorted(set(edges))
