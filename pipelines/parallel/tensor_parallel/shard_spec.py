"""The slice of a parameter that each shard holds: cut a whole tensor into shards, and join them again.

    query_key_value.weight of 4 heads (a, b, c, d) on 3 shards: rows of each of query, key and value

        whole     qa qb qc qd | ka kb kc kd | va vb vc vd
        shard 0   qa qb | ka kb | va vb                      unevenly: the first shards take one more
        shard 1   qc | kc | vc
        shard 2   qd | kd | vd

A state that is saved in whole tensors fits any number of shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sparkring.errors import LayoutRefused

Range = tuple[int, int]
"""[first, last) of a dimension."""


@dataclass(frozen=True)
class ShardSpec:
    """How one dimension of a tensor is dealt to shards."""

    dim: int
    ranges: tuple[tuple[Range, ...], ...]
    """For each shard, the ranges that it holds, in its order; together they cover the dimension once."""

    @property
    def whole_size(self) -> int:
        """Size of the whole dimension."""
        return sum(last - first for shard in self.ranges for first, last in shard)

    def size(self, shard: int) -> int:
        """Size of a shard's slice of the dimension."""
        return sum(last - first for first, last in self.ranges[shard])

    def take(self, whole: Tensor, shard: int) -> Tensor:
        """A copy of a shard's slice."""
        return torch.cat([whole.narrow(self.dim, first, last - first) for first, last in self.ranges[shard]], dim=self.dim)

    def put(self, whole: Tensor, shard: int, part: Tensor) -> None:
        """Write a shard's slice into the whole tensor."""
        start = 0
        for first, last in self.ranges[shard]:
            whole.narrow(self.dim, first, last - first).copy_(part.narrow(self.dim, start, last - first))
            start += last - first

    def whole_shape(self, part: Sequence[int]) -> tuple[int, ...]:
        """The whole tensor's shape, from a slice's."""
        return (*part[:self.dim], self.whole_size, *part[self.dim + 1:])

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole tensor from all shards' slices."""
        whole = parts[0].new_empty(self.whole_shape(parts[0].shape))
        for shard, part in enumerate(parts):
            self.put(whole, shard, part)
        return whole


def split_evenly(num_shards: int, *, dim: int, size: int, what: str, unit: int = 1, groups: int = 1) -> ShardSpec:
    """Deal units as evenly as possible; the first shards get one more.

    Args:
        num_shards: Ranks to deal to.
        dim: The dimension.
        size: Units to deal, e.g. heads.
        what: Their name, e.g. ``heads``, for the refusal.
        unit: Consecutive elements of a unit, e.g. a head's width.
        groups: Equal groups that follow each other in the dimension and are dealt alike, e.g. 3 for query, key and value.
    Raises:
        LayoutRefused: there are fewer units than shards.
    """
    if size < num_shards:
        raise LayoutRefused(f"{size} {what} cannot be dealt to {num_shards} shards; set shards to at most {size}, or give the model "
                            f"more {what}.")
    even, more = divmod(size, num_shards)
    firsts = [shard * even + min(shard, more) for shard in range(num_shards + 1)]
    return ShardSpec(dim, tuple(
        tuple(((group * size + first) * unit, (group * size + last) * unit) for group in range(groups))
        for first, last in pairwise(firsts)))
