"""The weighted mean of tensors over all ranks, in place: what ranks that train apart exchange.

    rank r gives    w_r x_r, and w_r        x: weights, optimizer state    w: rows that it learned from, or the sum of their weights
    all get         sum of w_r x_r / sum of w_r

An unweighted mean would give each row of a rank with few rows a larger part than one of a rank with many. Sums travel as gradients do
(allreduce/gradients.py); the last buffer also carries the votes and totals of the ranks.

Where no rank learned from any row all weights are 0, but models may still differ: momentum moves them on. Then all count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparkring.conf.schema import RingConfig
from sparkring.pipelines.parallel.allreduce.gradients import BY_HOROVOD, open_gradient_reducer
from sparkring.pipelines.parallel.collectives.buckets import plan_buckets
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.training.strategies.signals import Signals


class Totals(NamedTuple):
    """What a rank did since the last exchange; or the sums over all ranks."""

    weight: float = 0.0
    """Sum of its rows' weights; their number, if rows have none."""
    loss: float = 0.0
    """Sum of their losses, times their weights."""
    spoiled: float = 0.0
    """Steps whose loss or gradient was NaN or infinite."""
    long: float = 0.0
    """1 if its steps took long beside the ring's deadline (apart.py)."""


class ModelAverage:
    """Averages lists of tensors of fixed sizes."""

    def __init__(self, like: Sequence[Tensor], communicator: Communicator, *, bucket_mb: float, ring: RingConfig = BY_HOROVOD) -> None:
        """Allocate the buffers; all ranks do it at the same point.

        Args:
            like: Tensors of the sizes, type and device of those that will be averaged; at least one.
            communicator: The joined ring.
            bucket_mb: Approximate megabytes of a buffer.
            ring: How they are summed between hosts.
        """
        self._sizes = [tensor.numel() for tensor in like]
        self._buckets = plan_buckets(self._sizes, bucket_elements=max(1, int(bucket_mb * 1e6) // like[0].element_size()))
        lengths = [bucket.length for bucket in self._buckets]
        lengths[-1] += len(Totals._fields) + len(Signals.__dataclass_fields__)
        self._reducer = open_gradient_reducer(communicator, lengths, like[0].dtype, device=like[0].device, ring=ring)
        self.description = self._reducer.description

    @torch.no_grad()
    def exchange(self, tensors: Sequence[Tensor], mine: Totals, votes: Signals) -> tuple[Totals, Signals]:
        """Replace the tensors by their means.

        Args:
            tensors: This rank's, in the order and of the sizes of ``like``.
            mine: What this rank did.
            votes: Its signals.
        Returns:
            The sums over all ranks.
        """
        totals, all_votes = self._average(tensors, mine, votes)
        if not totals.weight:
            self._average(tensors, mine._replace(weight=1.0), votes)
        return totals, all_votes

    def close(self) -> None:
        """Release the buffers."""
        self._reducer.close()

    def _average(self, tensors: Sequence[Tensor], mine: Totals, votes: Signals) -> tuple[Totals, Signals]:
        """Replace the tensors by their means, unless all weights are 0; returns the sums."""
        for index, (bucket, buffer) in enumerate(zip(self._buckets, self._reducer.buffers, strict=True)):
            for number, offset in zip(bucket.parameters, bucket.offsets, strict=True):
                torch.mul(tensors[number].flatten(), mine.weight, out=buffer[offset:offset + self._sizes[number]])
            if index == len(self._buckets) - 1:
                buffer[bucket.length:] = torch.tensor([*mine, votes.stop, votes.save, votes.writing], dtype=buffer.dtype)
            self._reducer.ready(index)
        self._reducer.finish()
        *totals, stop, save, writing = self._reducer.buffers[-1][self._buckets[-1].length:].tolist()
        found = Totals(*totals)
        for bucket, buffer in zip(self._buckets, self._reducer.buffers, strict=True) if found.weight else ():
            for number, offset in zip(bucket.parameters, bucket.offsets, strict=True):
                tensors[number].copy_((buffer[offset:offset + self._sizes[number]] / found.weight).view_as(tensors[number]))
        return found, Signals(stop, save, writing)
