"""Messages between two ranks of a ring: the contract that the executor of stages relies on, whatever carries the bytes.

A message is a list of tensors. It travels on an *edge* (sender, receiver, and a name for border and direction) and is known by the
number of its micro-batch, which comes again in each step. ``send`` and ``expect`` never wait, so ranks may act in any order. Only
``receive`` and ``drain`` wait. Both end: with the message, with ``PeerSilent`` once the deadline has passed or the other rank has
ended, or with ``PipelineShapeError``.

    send ----> | link: framed on Horovod, shared memory, or sockets | ----> receive
               |   shapes: the first message of an edge and a number |
               |   of rows fixes dtypes and shapes; later ones carry |
               |   tensors alone, unless shapes are dynamic          |

All ranks open a transport with the same edges, and one thread uses it. Messages between GPUs stay on them if NCCL carries them, by
Horovod; else they pass through the host's memory (``parallel/host_copies.py``), and ``send`` waits until they are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from sparkring.conf.schema import TransportName
from sparkring.errors import ConfigError
from sparkring.pipelines.parallel.transports.journal import Journal
from sparkring.pipelines.parallel.transports.tensor_specs import TensorSpecs


class Edge(NamedTuple):
    """One direction across one border between two ranks."""

    source: int
    target: int
    name: str
    """Chunk border and direction, e.g. ``f1`` or ``b1``: with two stages the next rank is also the previous one."""

    def __str__(self) -> str:
        return f"{self.name} {self.source}>{self.target}"


def canonical_edges(edges: Sequence[Edge], *, size: int) -> list[Edge]:
    """The edges in the order that all ranks share, each once.

    Args:
        edges: The edges, in any order.
        size: Ranks of the ring.
    Raises:
        ConfigError: an edge leads from a rank to itself, or to a rank outside the ring.
    """
    for edge in edges:
        if edge.source == edge.target or not (0 <= edge.source < size and 0 <= edge.target < size):
            raise ConfigError(f"edge {edge} does not join two of the ranks 0 to {size - 1}; a stage hands tensors to itself without one.")
    return sorted(set(edges))


class Transport(Protocol):
    """Carries messages between stages."""

    name: TransportName
    journal: Journal
    """The last actions of this rank, for errors; the transport's user notes its own actions too."""

    def send(self, edge: Edge, micro_batch: int, tensors: Sequence[Tensor], *, rows: int = 0) -> None:
        """Send ``tensors``; never waits. They must not change before ``drain``. A number may be sent again once its
        message was received.

        Args:
            edge: An edge from this rank.
            micro_batch: The number of its micro-batch, below ``MOST_MICRO_BATCHES``.
            tensors: Dense tensors.
            rows: Distinguishes kinds of messages that differ in shape; sender and receiver pass the same number.
        Raises:
            PipelineShapeError: dtypes or shapes differ from the first message of this kind, and shapes are not dynamic. The
                receiver gets the same error.
        """

    def expect(self, edge: Edge, micro_batch: int, *, rows: int = 0) -> None:
        """Announce a receive, so that the message can arrive before it is asked for. Optional; never waits."""

    def receive(self, edge: Edge, micro_batch: int, *, rows: int = 0) -> list[Tensor]:
        """Wait for the oldest message of this micro-batch.

        Returns:
            Its tensors, with the dtypes and shapes that were sent.

        Raises:
            PeerSilent: the message did not come within the context's deadline, or the sender has ended.
            PipelineShapeError: the sender's shapes differ from those that were agreed.
        """

    def drain(self) -> None:
        """Wait until no sent message needs its tensors any more. Call it before waiting for ranks by other means.

        Raises:
            PeerSilent: a rank did not take a message within the deadline.
        """

    def close(self) -> None:
        """Release everything without waiting; call ``drain`` first if sent messages are still wanted."""


class Link(Protocol):
    """Carries messages to and from some of the ranks.

    Waits end at ``until``, a time of the monotonic clock, with LinkTimeout; they raise PeerEnded if the other rank has ended.
    """

    def send(self, edge: Edge, micro_batch: int, specs: TensorSpecs, tensors: Sequence[Tensor], *, rows: int) -> None:
        """Send; never waits. Raises MessageRefused if the other rank has refused a message and ended since."""

    def refuse(self, edge: Edge, micro_batch: int, *, agreed: TensorSpecs, found: TensorSpecs, until: float) -> None:
        """Send a refusal to the receiver of this message: it is ``found`` and will not come. Wait until it has arrived."""

    def expect(self, edge: Edge, micro_batch: int, *, rows: int) -> None:
        """Get ready for a message; never waits."""

    def receive(self, edge: Edge, micro_batch: int, until: float, *, rows: int) -> tuple[TensorSpecs, list[Tensor]]:
        """Wait for a message. Raises MessageRefused if the sender refused it."""

    def drain(self, until: float) -> None:
        """Wait until no message needs its tensors. Raises DrainFailed."""

    def close(self) -> None:
        """Release everything without waiting."""
