"""What a round receives: bytes from a socket, added to a rank's buffer or copied into it."""

from __future__ import annotations

import socket

import torch
from torch import Tensor

from sparkring.pipelines.parallel.allreduce.error_feedback import ErrorFeedback
from sparkring.pipelines.parallel.allreduce.rounds import Round
from sparkring.pipelines.parallel.transports.payload import memory_of
from sparkring.pipelines.parallel.transports.signals import PeerEnded

PIECE_BYTES = 1 << 20
"""As much of a message is received before it is added."""


class Incoming:
    """The message of one round."""

    def __init__(self, buffer: Tensor, each: Round, feedback: ErrorFeedback | None) -> None:
        """Expect what ``each`` receives, in the buffer's type, or in that of sums in 16 bits."""
        self._target, self._adds = buffer[each.received.first:each.received.last], each.adds
        self._wire = buffer.dtype if feedback is None else feedback.dtype
        self._in_place = not self._adds and self._wire is buffer.dtype
        self.left = len(self._target) * self._wire.itemsize
        """Bytes that have not come."""
        self._piece = self._target if self._in_place else torch.empty(min(self.left, PIECE_BYTES), dtype=torch.uint8)
        self._memory, self._filled = memory_or_nothing(self._piece), 0

    @property
    def wanted(self) -> int:
        """Bytes to the end of the piece."""
        return min(len(self._memory) - self._filled, self.left)

    def receive(self, source: socket.socket) -> int:
        """Take what has come, at most to the end of a piece; returns its bytes.

        Raises:
            PeerEnded: the other end is closed.
        """
        end = self._filled + self.wanted
        count = _receive(source, self._memory[self._filled:end])
        self._filled, self.left = self._filled + count, self.left - count
        if self._filled == end and not self._in_place:
            self._use(self._piece[:end].view(self._wire))
        return count

    def _use(self, values: Tensor) -> None:
        """Add or copy the piece to the front of what is left."""
        place, self._target, self._filled = self._target[:len(values)], self._target[len(values):], 0
        if self._adds:
            place.add_(values)
        else:
            place.copy_(values)


def memory_or_nothing(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor, which may have none; valid while the tensor lives."""
    return memory_of(tensor) if tensor.nbytes else memoryview(b"")


def _receive(source: socket.socket, into: memoryview) -> int:
    try:
        count = source.recv_into(into)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise PeerEnded(error.strerror or "its socket is closed") from None
    if not count:
        raise PeerEnded("it closed its end")
    return count
