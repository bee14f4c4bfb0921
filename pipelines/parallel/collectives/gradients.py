"""Summing flat buffers over ranks: the interface, and the choice of how.

Two ways, one result: ``HierarchicalReducer`` (shared memory inside a host, the ring between the hosts' leaders) where ranks
share hosts, else ``RingReducer`` (Horovod's ring over all ranks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import horovod.torch as hvd
import torch
from torch import Tensor

from sparkring.pipelines.parallel.collectives.communicator import Communicator, ring_errors, wait_results
from sparkring.pipelines.parallel.collectives.hierarchical import HierarchicalReducer
from sparkring.pipelines.parallel.mesh import Ranks, host_leaders, leaders
from sparkring.pipelines.parallel.shared_memory.peer_processes import PeerProcesses, process_identity
from sparkring.pipelines.parallel.shared_memory.segment import UNUSED_SIZES, open_segments


class GradientReducer(Protocol):
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
        """Wait until every buffer holds its sum; DeadlinePassed if a rank does not come, RingEnded if one has ended."""
        ...

    def close(self) -> None:
        """Let go of what it holds; the buffers must not be used any more."""
        ...


class RingReducer:
    """Horovod's ring over all ranks: one named allreduce a buffer, started as soon as the buffer is full."""

    def __init__(self, communicator: Communicator, buffers: Sequence[Tensor], group: Ranks) -> None:
        """Sum ``buffers`` over the process set of ``group``; a group of one rank has nothing to sum."""
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
        """Release nothing: the buffers are ordinary tensors."""


class OpenGradientReducer(Protocol):
    """A way to open a reducer; ``open_gradient_reducer`` is the one that training uses."""

    def __call__(self, communicator: Communicator, sizes: Sequence[int], dtype: torch.dtype, *, device: torch.device,
                 group: Ranks = ()) -> GradientReducer:
        """See ``open_gradient_reducer``."""
        ...


def open_gradient_reducer(communicator: Communicator, sizes: Sequence[int], dtype: torch.dtype, *, device: torch.device,
                 group: Ranks = ()) -> GradientReducer:
    """Open the best reducer that all ranks can use; every rank of the ring calls this at the same point, each with its group.

    Args:
        communicator: The joined ring; it has the process sets of the group and of its leaders.
        sizes: Elements of each buffer; the same on all ranks of a group.
        dtype: float32 or float64.
        device: Where the buffers live. On a GPU the ring (NCCL) sums inside and between hosts.
        group: Ranks that sum together, this one among them, ascending; default all.
    """
    context = communicator.context
    group = group or tuple(range(context.size))
    ring = host_leaders(group, context.hosts)
    hosts_are_shared = len(leaders(context.hosts)) < context.size
    if context.shared_memory and hosts_are_shared and device.type == "cpu":
        local, serves = tuple(rank for rank in group if rank in context.local_ranks), len(ring) < len(group)
        told = communicator.gather(torch.tensor([process_identity()]), name="reducer.processes").tolist()
        peers = PeerProcesses({rank: told[rank] for rank in local})
        segments = open_segments(communicator, sizes if serves else UNUSED_SIZES, dtype, ranks=local)
        if segments is not None and serves and (len(ring) == 1 or communicator.has_process_set(ring)):
            return HierarchicalReducer(communicator, segments, ring, peers)
    return RingReducer(communicator, [torch.zeros(size, dtype=dtype, device=device) for size in sizes], group)
