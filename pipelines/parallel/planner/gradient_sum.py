"""The seconds that a step waits for the sum of a stage's gradients, whose buckets fill during the last backward pass. Pure.

    backward    [ block 2 ][ block 1 ][ block 0 ]
    buckets              [ sum of 2  ]..[ sum of 1 and 0 ]
                                                 |<----->|  the step waits
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate


def waiting_s(gradient_bytes: Sequence[float], backward_s: Sequence[float], *, bucket_bytes: float, sum_s: Callable[[float], float],
              overlaps: bool) -> float:
    """Seconds from the end of the backward pass until all gradients are summed.

    Args:
        gradient_bytes: Bytes of each block's gradients, in the model's order.
        backward_s: Seconds of each block's backward pass; the last block's comes first.
        bucket_bytes: A bucket is summed once it holds this many bytes or more.
        sum_s: Seconds of a sum by bytes; buckets are summed one after the other.
        overlaps: Whether sums run beside the backward pass; otherwise they begin after it.
    """
    ends = list(accumulate(reversed(backward_s)))
    finished = ends[-1] if ends else 0.0
    clock = 0.0 if overlaps else finished
    held = 0.0
    for place, (ready, size) in enumerate(zip(ends, reversed(gradient_bytes), strict=True)):
        held += size
        if held and (held >= bucket_bytes or place == len(ends) - 1):
            clock = max(clock, ready) + sum_s(held)
            held = 0.0
    return max(0.0, clock - finished)
