"""Sums that all ranks make between each other, without a first sum within their host."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from sparkring.errors import DeadlinePassed
from sparkring.pipelines.parallel.allreduce.between import SumsBetween
from sparkring.pipelines.parallel.context import RankContext


class DirectReducer:
    """See GradientReducer; buffers are ordinary tensors."""

    def __init__(self, context: RankContext, buffers: Sequence[Tensor], sums: SumsBetween | None, *, description: str) -> None:
        """Sum ``buffers`` by ``sums``; without them this rank is the only one, and has nothing to sum."""
        self.buffers, self.description = buffers, description
        self._sums, self._context = sums, context
        self._open: list[int] = []

    def ready(self, index: int) -> None:
        """Start the sum of one buffer."""
        if self._sums is not None:
            self._sums.start(index, self.buffers[index])
            self._open.append(index)

    def finish(self) -> None:
        """Wait for all of them."""
        if self._sums is None:
            return
        until = time.monotonic() + self._context.deadline_s
        while True:
            self._open = [index for index in self._open if not self._sums.done(index)]
            if not self._open:
                return
            if time.monotonic() > until:
                raise self._lateness(self._sums)
            self._sums.nap()

    def close(self) -> None:
        """End the sums."""
        if self._sums is not None:
            self._sums.close()

    def _lateness(self, sums: SumsBetween) -> DeadlinePassed:
        awaited, context = sums.awaited(), self._context
        return DeadlinePassed(f"rank {context.rank} waited {context.deadline_s:g} s for {awaited.who} in gradient buffer {self._open[0]}; "
                              "see the other ranks' last lines, or raise train.ring.deadline_s if they are only slow.",
                              awaited=awaited.ranks)
