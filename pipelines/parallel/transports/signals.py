"""The exceptions with which a link ends a wait; a transport turns them into errors for its user."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkring.pipelines.parallel.transports.base import Edge
    from sparkring.pipelines.parallel.transports.tensor_specs import TensorSpecs


class LinkTimeout(Exception):
    """A link waited until the deadline."""


class PeerEnded(Exception):
    """The other rank has ended; or some rank of the ring, if the link cannot tell which."""

    def __init__(self, how: str, *, whole_ring: bool = False) -> None:
        """Note how the link noticed it, and whether any rank of the ring may have ended."""
        self.how, self.whole_ring = how, whole_ring
        super().__init__(how)

    def clause(self, peer: int) -> str:
        """A clause for an error."""
        if self.whole_ring:
            return f"the ring has ended, so some rank raised or died ({self.how})"
        return f"rank {peer} has ended ({self.how})"


class EdgeEnded(Exception):
    """Of several ranks that are waited for, the one behind this edge has ended."""

    def __init__(self, edge: Edge, ended: PeerEnded) -> None:
        """Name the edge."""
        self.edge, self.ended = edge, ended
        super().__init__()


class MessageRefused(Exception):
    """The sender must not send a message: its tensors are ``found``, and ``agreed`` was expected."""

    def __init__(self, edge: Edge, micro_batch: int, *, agreed: TensorSpecs, found: TensorSpecs) -> None:
        """Name the message."""
        self.edge, self.micro_batch, self.agreed, self.found = edge, micro_batch, agreed, found
        super().__init__()


class DrainFailed(Exception):
    """Messages were not taken before the deadline; names the first. ``ended`` is set if its receiver has ended."""

    def __init__(self, edge: Edge, micro_batch: int, ended: PeerEnded | None = None) -> None:
        """Name the message."""
        self.edge, self.micro_batch, self.ended = edge, micro_batch, ended
        super().__init__()


def seconds_left(until: float) -> float:
    """Seconds from now to ``until``, a time of the monotonic clock.

    Raises:
        LinkTimeout: it has passed.
    """
    left = until - time.monotonic()
    if left <= 0:
        raise LinkTimeout
    return left
