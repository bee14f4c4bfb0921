"""Messages over a wire that carries flat bytes, one operation at a time: Horovod's.

    static shapes    one header per edge and number of rows | payload | payload | payload ...
    dynamic shapes   header | payload, header | payload ...               in both cases each part has a key of its own

The receiver keeps the header's specs, so that it can post the receives of later payloads before they are sent. A sender whose
tensors have other shapes sends a refusal in place of the payload (``payload.refusal``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sparkring.conf.schema import MOST_MICRO_BATCHES
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.payload import CPU, pack, read, read_refusal, refusal
from sparkring.pipelines.parallel.transports.signals import MessageRefused
from sparkring.pipelines.parallel.transports.tensor_specs import HEADER_BYTES, TensorSpecs, header_tensor, read_header

HEADER, PAYLOAD = 0, 1


class MessageKey(NamedTuple):
    """Names one of the operations of a ring that are in flight."""

    edge: Edge
    number: int
    """The message's micro-batch; for a header that is sent once, the number of rows that it describes."""
    part: int
    """HEADER or PAYLOAD."""


class Wire(Protocol):
    """Carries flat uint8 tensors by key. Waits raise LinkTimeout, PeerEnded or DrainFailed."""

    def send(self, key: MessageKey, data: Tensor) -> None:
        """Send; never waits. Keeps ``data`` alive until it was sent."""

    def post(self, key: MessageKey) -> None:
        """Get ready for the bytes of a key; does nothing if it was posted already."""

    def wait(self, key: MessageKey, until: float) -> Tensor:
        """The bytes of a posted key."""

    def drain(self, until: float) -> None:
        """Wait until everything was sent."""

    def close(self) -> None:
        """Release everything without waiting."""


class FramedLink:
    """The contract of shapes on top of a wire."""

    def __init__(self, wire: Wire, *, token: str, dynamic_shapes: bool, device: torch.device = CPU) -> None:
        """Use a wire.

        Args:
            wire: Carries the bytes.
            token: The launch's random token, with which a refusal begins.
            dynamic_shapes: Whether the messages of an edge may differ in their shapes.
            device: Where the wire takes and gives payloads; headers are always on the CPU.
        """
        self._wire, self._token, self._dynamic, self._device = wire, bytes.fromhex(token), dynamic_shapes, device
        self._beside = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._announced: set[tuple[Edge, int]] = set()
        self._known: dict[tuple[Edge, int], TensorSpecs] = {}

    def send(self, edge: Edge, micro_batch: int, specs: TensorSpecs, tensors: Sequence[Tensor], *, rows: int) -> None:
        """See Link."""
        payload = pack(specs, tensors, self._device)  # first, because it refuses what cannot be sent
        if self._dynamic or (edge, rows) not in self._announced:
            self._wire.send(self._header_key(edge, micro_batch, rows), header_tensor(specs))
            self._announced.add((edge, rows))
        self._wire.send(MessageKey(edge, micro_batch, PAYLOAD), payload)

    def refuse(self, edge: Edge, micro_batch: int, *, agreed: TensorSpecs, found: TensorSpecs, until: float) -> None:
        """See Link."""
        refused = refusal(found, token=self._token, length=agreed.nbytes).to(self._device)
        self._wire.send(MessageKey(edge, micro_batch, PAYLOAD), refused)
        self._wire.drain(until)

    def expect(self, edge: Edge, micro_batch: int, *, rows: int) -> None:
        """See Link."""
        if (edge, rows) not in self._known:
            self._wire.post(self._header_key(edge, micro_batch, rows))
        self._wire.post(MessageKey(edge, micro_batch, PAYLOAD))

    def receive(self, edge: Edge, micro_batch: int, until: float, *, rows: int) -> tuple[TensorSpecs, list[Tensor]]:
        """See Link."""
        self.expect(edge, micro_batch, rows=rows)
        specs = self._known.get((edge, rows))
        if specs is None:
            specs = read_header(self._wire.wait(self._header_key(edge, micro_batch, rows), until))
            if not self._dynamic:
                self._known[edge, rows] = specs
        payload = self._wire.wait(MessageKey(edge, micro_batch, PAYLOAD), until)
        found = read_refusal(self._beginning(payload), token=self._token)
        if found is not None:
            raise MessageRefused(edge, micro_batch, agreed=specs, found=found)
        return specs, read(specs, payload)

    def drain(self, until: float) -> None:
        """See Link."""
        self._wire.drain(until)

    def close(self) -> None:
        """See Link."""
        self._wire.close()

    def _beginning(self, payload: Tensor) -> Tensor:
        """As much of an arrived payload as a refusal has, on the CPU; read beside the passes that a GPU still works on."""
        beginning = payload[:len(self._token) + HEADER_BYTES]
        if self._beside is None:
            return beginning
        with torch.cuda.stream(self._beside):
            return beginning.cpu()

    def _header_key(self, edge: Edge, micro_batch: int, rows: int) -> MessageKey:
        return MessageKey(edge, micro_batch if self._dynamic else rows % MOST_MICRO_BATCHES, HEADER)
