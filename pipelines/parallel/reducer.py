"""Summing flat buffers over ranks: the interface, and the choice of how.

Two ways, one result: ``HostReducer`` (shared memory inside a host, the ring between the hosts' leaders) where ranks
share hosts, else ``RingReducer`` (Horovod's ring over all ranks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from sparkring.pipelines.parallel.communicator import Communicator
from sparkring.pipelines.parallel.host_reducer import HostReducer
from sparkring.pipelines.parallel.mesh import leaders
from sparkring.pipelines.parallel.ring_reducer import RingReducer
from sparkring.pipelines.parallel.shared_segment import open_segments


class Reducer(Protocol):
    """Sums buffers that it owns over all ranks. A round: fill, ``ready`` each buffer in any order, ``finish``."""

    description: str
    """How it sums, for events and reports."""

    @property
    def buffers(self) -> Sequence[Tensor]:
        """Flat tensors that the caller fills; after ``finish`` they hold the sums."""
        ...

    def ready(self, index: int) -> None:
        """This rank's values of buffer ``index`` are in; summing may begin. Does not wait."""
        ...

    def finish(self) -> None:
        """Wait until every buffer holds its sum; DeadlinePassed if a rank does not come."""
        ...

    def close(self) -> None:
        """Let go of what it holds; the buffers must not be used any more."""
        ...


def open_reducer(communicator: Communicator, sizes: Sequence[int], dtype: torch.dtype, *, device: torch.device) -> Reducer:
    """Open the best reducer that all ranks can use; every rank calls this at the same point.

    Args:
        communicator: The joined ring.
        sizes: Elements of each buffer; the same on all ranks.
        dtype: float32 or float64.
        device: Where the buffers live. On a GPU the ring (NCCL) sums inside and between hosts.
    """
    context = communicator.context
    hosts_are_shared = len(leaders(context.hosts)) < context.size
    if context.shared_memory and hosts_are_shared and device.type == "cpu":
        segments = open_segments(communicator, sizes, dtype)
        if segments is not None:
            return HostReducer(communicator, segments)
    return RingReducer(communicator, [torch.zeros(size, dtype=dtype, device=device) for size in sizes])
