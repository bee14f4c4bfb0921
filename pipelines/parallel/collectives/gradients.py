"""Summing gradients over ranks in flat buffers: the interface, and the choice of an implementation.

    HierarchicalReducer    shared memory inside a host, a ring between the hosts' leaders; where ranks share hosts
    RingReducer            Horovod's ring over all ranks: GPUs, one rank per host, or no shared memory
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import horovod.torch as hvd
import torch
from torch import Tensor

from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.hierarchical import HierarchicalReducer
from sparkring.pipelines.parallel.collectives.horovod_handles import ring_errors, wait_results
from sparkring.pipelines.parallel.mesh import Ranks, host_leaders, leaders
from sparkring.pipelines.parallel.shared_memory.peer_processes import PeerProcesses, process_identity
from sparkring.pipelines.parallel.shared_memory.segment import UNUSED_SIZES, open_segments


class GradientReducer(Protocol):
    """Sums buffers that it owns over all ranks. One round: fill them, call ``ready`` for each in any order, then ``finish``."""

    description: str
    """The way in which sums are made, for events and reports."""

    @property
    def buffers(self) -> Sequence[Tensor]:
        """Flat tensors that the caller fills; after ``finish`` they hold the sums."""
        ...

    def ready(self, index: int) -> None:
        """Start summing buffer ``index``, which holds this rank's values. Does not wait."""
        ...

    def finish(self) -> None:
        """Wait until every buffer holds its sum.

        Raises:
            DeadlinePassed: a rank did not join in time.
            RingEnded: a rank has ended.
        """
        ...

    def close(self) -> None:
        """Release the buffers, which must not be used afterwards."""
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
    """Opens a reducer, as ``open_gradient_reducer`` does; a benchmark may pass its own."""

    def __call__(self, communicator: Communicator, sizes: Sequence[int], dtype: torch.dtype, *, device: torch.device,
                 group: Ranks = ()) -> GradientReducer:
        """See ``open_gradient_reducer``."""
        ...


def open_gradient_reducer(communicator: Communicator, sizes: Sequence[int], dtype: torch.dtype, *, device: torch.device,
                 group: Ranks = ()) -> GradientReducer:
    """Open the fastest reducer that all ranks can use. Every rank of the ring calls this at the same point, with its own group.

    Args:
        communicator: The joined ring; it has the process sets of the group and of its leaders.
        sizes: Elements of each buffer; the same on all ranks of a group.
        dtype: float32 or float64.
        device: Where the buffers live. On a GPU the ring (NCCL) sums inside and between hosts.
        group: The ranks that sum together, this one among them, ascending; default all.
    """
    context = communicator.context
    group = group or tuple(range(context.size))
    ring = host_leaders(group, context.hosts)
    hosts_are_shared = len(leaders(context.hosts)) < context.size
    if context.shared_memory and hosts_are_shared and device.type == "cpu":
        local, serves = tuple(rank for rank in group if rank in context.local_ranks), len(ring) < len(group)
        identities = communicator.gather(torch.tensor([process_identity()]), name="reducer.processes").tolist()
        peers = PeerProcesses({rank: identities[rank] for rank in local})
        segments = open_segments(communicator, sizes if serves else UNUSED_SIZES, dtype, ranks=local)
        if segments is not None and serves and (len(ring) == 1 or communicator.has_process_set(ring)):
            return HierarchicalReducer(communicator, segments, ring, peers)
    return RingReducer(communicator, [torch.zeros(size, dtype=dtype, device=device) for size in sizes], group)
