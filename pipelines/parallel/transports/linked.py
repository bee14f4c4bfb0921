"""A transport made of links: it keeps the shape contract, the journal and the deadlines, and turns signals into errors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, NoReturn, Self

import torch
from torch import Tensor

from sparkring.conf.schema import TransportName
from sparkring.errors import ConfigError, PeerSilent, PipelineShapeError
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.host_copies import HostCopies
from sparkring.pipelines.parallel.transports.base import Edge, Link
from sparkring.pipelines.parallel.transports.journal import Journal
from sparkring.pipelines.parallel.transports.signals import DrainFailed, LinkTimeout, MessageRefused, PeerEnded
from sparkring.pipelines.parallel.transports.tensor_specs import TensorSpecs


class _Message(NamedTuple):
    """One message, as the journal names it."""

    edge: Edge
    micro_batch: int

    def __str__(self) -> str:
        return f"micro-batch {self.micro_batch} on edge {self.edge}"


class LinkedTransport:
    """A transport over links. Use it as a context manager: leaving it normally drains and closes it."""

    name: TransportName
    carries_devices = False
    """Whether the links carry tensors on a GPU; the others get them in pinned memory of the host."""
    description = ""
    """The way that messages travel, if the name does not describe it."""

    def __init__(self, communicator: Communicator, edges: Sequence[Edge], links: Mapping[int, Link], *, dynamic_shapes: bool) -> None:
        """Take the links.

        Args:
            communicator: The joined ring.
            edges: All edges of the job.
            links: The links, by the rank that each of them reaches.
            dynamic_shapes: Whether the messages of an edge may differ in their shapes.
        """
        context = communicator.context
        self._rank, self._deadline_s, self._device = context.rank, context.deadline_s, torch.device(context.device)
        self._copies = None if self._device.type == "cpu" or self.carries_devices else HostCopies(self._device)
        self._links, self._dynamic = links, dynamic_shapes
        self._outward = {edge: links[edge.target] for edge in edges if edge.source == context.rank}
        self._inward = {edge: links[edge.source] for edge in edges if edge.target == context.rank}
        self._agreed: dict[tuple[Edge, int], TensorSpecs] = {}
        """The first message of each edge and number of rows."""
        self.journal = Journal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            self.close()

    def send(self, edge: Edge, micro_batch: int, tensors: Sequence[Tensor], *, rows: int = 0) -> None:
        """See Transport."""
        link = self._outward.get(edge) or self._foreign(edge, "send")
        specs = TensorSpecs.of(tensors)
        if not self._dynamic:
            agreed = self._agreed.setdefault((edge, rows), specs)
            if specs != agreed:
                self._refuse(link, edge, micro_batch, agreed=agreed, found=specs)
            specs = agreed  # it has computed its offsets already
        self.journal.note("send", _Message(edge, micro_batch))
        if self._copies is not None:
            tensors = self._copies.to_host(tensors)
        try:
            link.send(edge, micro_batch, specs, tensors, rows=rows)
        except PeerEnded as ended:
            self._silent("sending", edge, micro_batch, edge.target, ended=ended)
        except MessageRefused as refused:
            raise self._peer_refused(refused) from None

    def expect(self, edge: Edge, micro_batch: int, *, rows: int = 0) -> None:
        """See Transport."""
        link = self._inward.get(edge) or self._foreign(edge, "receive")
        try:
            link.expect(edge, micro_batch, rows=rows)
        except PeerEnded as ended:
            self._silent("expecting", edge, micro_batch, edge.source, ended=ended)

    def receive(self, edge: Edge, micro_batch: int, *, rows: int = 0) -> list[Tensor]:
        """See Transport."""
        link = self._inward.get(edge) or self._foreign(edge, "receive")
        self.journal.note("receive", _Message(edge, micro_batch))
        began = time.monotonic()
        try:
            _, tensors = link.receive(edge, micro_batch, began + self._deadline_s, rows=rows)
        except PeerEnded as ended:
            self._silent("receiving", edge, micro_batch, edge.source, ended=ended, began=began)
        except LinkTimeout:
            self._silent("receiving", edge, micro_batch, edge.source, ended=None, began=began)
        except MessageRefused as refused:
            raise self._peer_refused(refused) from None
        return tensors if self._copies is None else self._copies.to_device(tensors)

    def drain(self) -> None:
        """See Transport."""
        began = time.monotonic()
        self.journal.note("drain")
        for link in self._distinct():
            try:
                link.drain(began + self._deadline_s)
            except DrainFailed as late:
                self._silent("draining", late.edge, late.micro_batch, late.edge.target, ended=late.ended, began=began)

    def close(self) -> None:
        """See Transport."""
        for link in self._distinct():
            link.close()

    def _distinct(self) -> list[Link]:
        return list({id(link): link for link in self._links.values()}.values())

    def _refuse(self, link: Link, edge: Edge, micro_batch: int, *, agreed: TensorSpecs, found: TensorSpecs) -> NoReturn:
        """Send a refusal to the receiver, within half the deadline, and raise."""
        self.journal.note("refuse", _Message(edge, micro_batch))
        with suppress(LinkTimeout, PeerEnded, DrainFailed):  # a receiver that cannot be reached learns it from our end
            link.refuse(edge, micro_batch, agreed=agreed, found=found, until=time.monotonic() + self._deadline_s / 2)
        raise self._other_shape(edge, micro_batch, agreed=agreed, found=found)

    def _peer_refused(self, refused: MessageRefused) -> PipelineShapeError:
        return self._other_shape(refused.edge, refused.micro_batch, agreed=refused.agreed, found=refused.found)

    def _other_shape(self, edge: Edge, micro_batch: int, *, agreed: TensorSpecs, found: TensorSpecs) -> PipelineShapeError:
        what = f"is {found}" if found.parts else "has other tensors"
        return PipelineShapeError(f"{_Message(edge, micro_batch)} {what}, the first one of as many rows was {agreed}; "
                                  "make all micro-batches alike, or set train.parallel.dynamic_shapes=true.")

    def _silent(self, doing: str, edge: Edge, micro_batch: int, peer: int, *, ended: PeerEnded | None,
                began: float | None = None) -> NoReturn:
        seconds = 0.0 if began is None else round(time.monotonic() - began, 1)
        raise PeerSilent(rank=self._rank, peer=peer, doing=f"{doing} {_Message(edge, micro_batch)} by {self.name}", seconds=seconds,
                         ended=ended.clause(peer) if ended else "", last_actions=self.journal.last()) from None

    def _foreign(self, edge: Edge, verb: str) -> NoReturn:
        known = sorted(self._outward if verb == "send" else self._inward)
        raise ConfigError(f"rank {self._rank} cannot {verb} on edge {edge}: the transport was opened with "
                          f"{', '.join(map(str, known)) or 'no edges to ' + verb + ' on'}; open it with all edges of the schedule.")
