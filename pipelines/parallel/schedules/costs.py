"""What the actions of a schedule cost: seconds and bytes, measured or assumed. Plain data.

The model of memory, a micro-batch of a chunk on its worker:

    F            + activation_bytes                  checkpointed: + stash_bytes (the chunk's input alone)
    B            - all of it                         checkpointed: its activations are there while B runs
    I            - all but weight_bytes              what the gradients of the weights still need
    W            - weight_bytes

The model of time: a checkpointed B or I takes ``forward_s`` longer, since it computes the forward pass again. What is sent
arrives ``hop_*_s`` after it was sent; in lists with transfers, sending and receiving take their worker's time too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sparkring.conf.schema import Recompute


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of one micro-batch, by chunk, by border between chunks, and by stage."""

    forward_s: Sequence[float]
    """(chunks,) F."""
    backward_s: Sequence[float]
    """(chunks,) B: gradients of input and weights at once."""
    input_s: Sequence[float]
    """(chunks,) I: the gradient of the input alone."""
    weight_s: Sequence[float]
    """(chunks,) W: the gradients of the weights alone."""
    hop_forward_s: Sequence[float]
    """(chunks - 1,) from the end of SEND, or of F, until the output of F is at the next worker."""
    hop_backward_s: Sequence[float]
    """(chunks - 1,) from the end of SEND, or of B or I of the next chunk, until the gradient is here."""
    send_s: Sequence[float] = ()
    """(chunks - 1,) SEND over a border, in either direction: the sender's own time; empty: nothing."""
    receive_s: Sequence[float] = ()
    """(chunks - 1,) RECV, from when the message is there: the receiver's own time; empty: nothing."""
    send_blocks: bool = False
    """Whether a worker does nothing else while what it sends is on the way."""
    reduce_s: Sequence[float] = ()
    """(stages,) REDUCE, from when the stage's last replica has come to it; empty: nothing."""
    step_s: Sequence[float] = ()
    """(stages,) STEP; empty: nothing."""
    activation_bytes: Sequence[float] = ()
    """(chunks,) what F leaves for the backward pass; empty: not asked."""
    stash_bytes: Sequence[float] = ()
    """(chunks,) what F leaves where it is checkpointed."""
    weight_bytes: Sequence[float] = ()
    """(chunks,) what I leaves for W; at most ``activation_bytes``."""
    checkpoint: Sequence[Recompute] = ()
    """(chunks,) which micro-batches are checkpointed; empty: never."""

    @classmethod
    def equal(cls, num_chunks: int, *, forward_s: float = 1.0, backward_s: float = 2.0, hop_s: float = 0.0) -> Self:
        """Every chunk costs the same; I and W are half of B each, and an activation is one byte, kept until W.

        Args:
            num_chunks: Chunks of the schedule.
            forward_s: Seconds of F.
            backward_s: Seconds of B.
            hop_s: Seconds of a hop, in either direction.
        """
        def each(value: float) -> tuple[float, ...]:
            return (value,) * num_chunks

        hops = (hop_s,) * (num_chunks - 1)
        return cls(forward_s=each(forward_s), backward_s=each(backward_s), input_s=each(backward_s / 2), weight_s=each(backward_s / 2),
                   hop_forward_s=hops, hop_backward_s=hops, activation_bytes=each(1), stash_bytes=each(0), weight_bytes=each(1))

    @classmethod
    def balanced(cls, replicas: Sequence[int]) -> Self:
        """A stage of r replicas takes r times as long, which is why it has them: all stages keep the same pace. F = I = W."""
        slots = tuple(float(count) for count in replicas)
        hops = (0.0,) * (len(slots) - 1)
        return cls(forward_s=slots, backward_s=tuple(2 * slot for slot in slots), input_s=slots, weight_s=slots,
                   hop_forward_s=hops, hop_backward_s=hops)
