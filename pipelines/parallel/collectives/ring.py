"""Summing by Horovod's ring over all ranks: one named allreduce a buffer, started as soon as the buffer is full."""

from __future__ import annotations

from collections.abc import Sequence

import horovod.torch as hvd
from torch import Tensor

from sparkring.pipelines.parallel.collectives.communicator import Communicator, ring_errors, wait_results
from sparkring.pipelines.parallel.mesh import Ranks


class RingReducer:
    """The ring alone: between hosts without shared ranks, on GPUs, and where shared memory can't be had."""

    def __init__(self, communicator: Communicator, buffers: Sequence[Tensor], group: Ranks) -> None:
        self.buffers = buffers
        self.description = "ring"
        self._set = communicator.process_set(group) if len(group) > 1 else None
        self._context = communicator.context
        self._handles: dict[int, int] = {}

    def ready(self, index: int) -> None:
        """Start the allreduce of one buffer."""
        if self._set is None:
            return
        with ring_errors("gradient allreduce"):
            self._handles[index] = hvd.allreduce_async_(
                self.buffers[index], name=f"gradients.{index}", op=hvd.Sum, process_set=self._set)

    def finish(self) -> None:
        """Wait for all of them."""
        wait_results(list(self._handles.values()), what="gradient allreduce", deadline_s=self._context.deadline_s)
        self._handles.clear()

    def close(self) -> None:
        """Nothing is held."""
