"""An order-free digest of row ids: proof that an epoch read every row exactly once.

Each id is mixed to 64 bits, and the results are added modulo 2**64. So the digests of disjoint parts add up to the digest of the
whole, on any number of ranks and in any order. A lost, repeated or exchanged row changes it, except by a chance of 2**-64. It is no
defence against ids chosen by an attacker. The same mixing gives each row its own random bits in each epoch.

Needs numpy only.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_MODULUS = 1 << 64


def rows_digest(ids: NDArray[np.int64]) -> int:
    """Digest the multiset of ``ids``.

    Args:
        ids: Row ids, int64, shape (rows,).
    Returns:
        An integer in [0, 2**64); 0 for no rows.
    """
    return int(mix(ids.astype(np.uint64)).sum(dtype=np.uint64))


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread each value over 64 bits, one to one.

    The finaliser of SplitMix64 applied to the value plus its increment, so that 0 counts too.
    Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, figure 16
    (the variant with Stafford's constants, as in ``java.util.SplittableRandom``).
    """
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def row_bits(row_ids: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.uint64]:
    """64 random bits per row and epoch: the row's id and the key of the epoch, mixed twice.

    Args:
        row_ids: (rows,)
        seed: The run's seed.
        epoch: From 0.
    Returns:
        (rows,)
    """
    digest = hashlib.blake2b(struct.pack("<2q", seed, epoch), digest_size=8).digest()
    return mix(mix(row_ids.astype(np.uint64)) ^ np.uint64(int.from_bytes(digest, "little")))


def add(digests: Iterable[int]) -> int:
    """The digest of all rows, from the digests of parts."""
    return sum(digests) % _MODULUS


def to_hex(digest: int) -> str:
    """A digest as 16 hex digits, as manifests and events hold it."""
    return f"{digest:016x}"


def from_hex(text: str) -> int:
    """The inverse of ``to_hex``."""
    return int(text, 16)
