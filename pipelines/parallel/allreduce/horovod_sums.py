"""Sums by Horovod: one named allreduce a buffer, on the process set of the ranks that sum. On GPUs NCCL makes them."""

from __future__ import annotations

import time

import horovod.torch as hvd
from torch import Tensor

from sparkring.pipelines.parallel.allreduce.between import Awaited
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.horovod_handles import POLL_S, ring_errors
from sparkring.pipelines.parallel.mesh import Ranks


class HorovodSums:
    """See SumsBetween."""

    def __init__(self, communicator: Communicator, ranks: Ranks) -> None:
        """Sum over ``ranks``, more than one, which have a process set."""
        self._set = communicator.process_set(ranks)
        self._handles: dict[int, int] = {}

    def start(self, index: int, buffer: Tensor) -> None:
        """See SumsBetween."""
        with ring_errors("the sum of gradients"):
            self._handles[index] = hvd.allreduce_async_(buffer, name=f"gradients.{index}", op=hvd.Sum, process_set=self._set)

    def done(self, index: int) -> bool:
        """See SumsBetween."""
        with ring_errors("the sum of gradients"):
            if not hvd.poll(self._handles[index]):
                return False
            hvd.synchronize(self._handles.pop(index))
        return True

    def nap(self) -> None:
        """See SumsBetween."""
        time.sleep(POLL_S)

    def awaited(self) -> Awaited:
        """See SumsBetween: Horovod does not tell."""
        return Awaited("the other ranks")

    def close(self) -> None:
        """See SumsBetween: Horovod ends with the ring."""
