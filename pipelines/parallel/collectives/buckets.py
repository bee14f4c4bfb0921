"""Which gradients are summed together: buckets of parameters, filled in the order of the backward pass. Pure: numbers in, numbers out.

    parameters   p0 p1 p2 p3 p4           the backward pass reaches p4 first
    one host     [ p4 p3 ][ p2 p1 p0 ]    large: sums through memory cost a few looks at counters each, and hide nothing
    hosts        [p4][p3][p2][p1][p0]     small: while a bucket travels, the pass computes the next

What travels after the pass has ended is waited for, so between hosts a bucket is a small share of all gradients: with buckets of 25 MB a
network of 28 MB would send nearly all of them after the pass. The plan depends on the parameters and on whether the ranks share a host, so
all ranks that sum together have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PIECES = 16
"""Between hosts: the number of buckets that a small network's gradients are cut into."""
LEAST_BYTES = 1_000_000
"""Between hosts: a bucket is not made smaller; each costs a round of messages between the hosts. Also DDP's first bucket."""


@dataclass(frozen=True)
class Bucket:
    """Parameters whose gradients are summed together, and their positions in the flat buffer."""

    parameters: tuple[int, ...]
    """Numbers of the parameters, in the order in which the backward pass is expected to reach them."""
    offsets: tuple[int, ...]
    """First element of each parameter."""
    length: int
    """Elements of all parameters."""


def bucket_bytes(gradient_bytes: int, *, num_hosts: int, most: float) -> float:
    """Bytes at which a bucket is closed.

    Args:
        gradient_bytes: Of all parameters that are summed together.
        num_hosts: Hosts of the ranks that sum them.
        most: Bytes that a bucket has within a host, and at most between hosts.
    """
    return most if num_hosts == 1 else min(most, max(LEAST_BYTES, gradient_bytes / PIECES))


def plan_buckets(sizes: Sequence[int], *, bucket_elements: int) -> list[Bucket]:
    """Fill buckets with parameters from the last to the first, as the backward pass does.

    Args:
        sizes: Elements of each parameter.
        bucket_elements: A bucket is closed once it holds this many or more, and half full before a parameter that has so many itself, such
            as an embedding: those before it need not wait for it.
    """
    buckets: list[Bucket] = []
    members: list[int] = []
    offsets: list[int] = []
    length = 0
    for number in reversed(range(len(sizes))):
        members.append(number)
        offsets.append(length)
        length += sizes[number]
        full = length >= bucket_elements or (2 * length >= bucket_elements and sizes[number - 1] >= bucket_elements)
        if full or number == 0:
            buckets.append(Bucket(tuple(members), tuple(offsets), length))
            members, offsets, length = [], [], 0
    return buckets
