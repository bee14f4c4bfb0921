"""The costs of a schedule's actions: seconds and bytes, measured or assumed. Plain data.

The model of memory, per micro-batch of a chunk on its worker:

    F            + activation_bytes                  checkpointed: + stash_bytes (the chunk's input alone)
    B            - all of it                         checkpointed: its activations exist while B runs
    I            - all but weight_bytes              which the gradients of the weights still need
    W            - weight_bytes

The model of time: a checkpointed B or I takes ``forward_s`` longer, since it runs the forward pass again. A message arrives
``hop_*_s`` after it was sent; in lists with transfers, sending and receiving also occupy their workers.
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
    """(chunks - 1,) from the end of SEND, or of F, until the output of F has reached the next worker."""
    hop_backward_s: Sequence[float]
    """(chunks - 1,) from the end of SEND, or of the next chunk's B or I, until the gradient has arrived."""
    send_s: Sequence[float] = ()
    """(chunks - 1,) SEND over a border, in either direction: while the sender is busy; empty: 0."""
    receive_s: Sequence[float] = ()
    """(chunks - 1,) RECV, from the message's arrival, while the receiver is busy; empty: 0."""
    send_blocks: bool = False
    """Whether a worker waits until its message has arrived."""
    reduce_s: Sequence[float] = ()
    """(stages,) REDUCE, from when the stage's last replica has reached it; empty: 0."""
    step_s: Sequence[float] = ()
    """(stages,) STEP; empty: 0."""
    activation_bytes: Sequence[float] = ()
    """(chunks,) bytes that F keeps for the backward pass; empty: memory is not modelled."""
    stash_bytes: Sequence[float] = ()
    """(chunks,) bytes that a checkpointed F keeps."""
    weight_bytes: Sequence[float] = ()
    """(chunks,) bytes that I keeps for W; at most ``activation_bytes``."""
    checkpoint: Sequence[Recompute] = ()
    """(chunks,) which micro-batches are checkpointed; empty: never."""

    @classmethod
    def equal(cls, num_chunks: int, *, forward_s: float = 1.0, backward_s: float = 2.0, hop_s: float = 0.0) -> Self:
        """Equal costs for every chunk. I and W take half of B each; an activation is one byte and is kept until W.

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
        """Costs with which all stages keep the same pace: a stage of r replicas takes r times as long. F = I = W."""
        slots = tuple(float(count) for count in replicas)
        hops = (0.0,) * (len(slots) - 1)
        return cls(forward_s=slots, backward_s=tuple(2 * slot for slot in slots), input_s=slots, weight_s=slots,
                   hop_forward_s=hops, hop_backward_s=hops)
