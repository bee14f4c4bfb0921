"""Summing gradients over ranks in flat buffers: the interface, and the choice of an implementation.

    HierarchicalReducer    shared memory inside a host, its first rank sums between hosts; where ranks share hosts
    DirectReducer          all ranks sum between each other: GPUs, one rank per host, or no shared memory

Between hosts, or between all ranks, they sum by HorovodSums or SocketSums, as ``train.ring.allreduce`` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sparkring.conf.schema import RingConfig
from sparkring.pipelines.parallel.allreduce.between import SumsBetween
from sparkring.pipelines.parallel.allreduce.direct import DirectReducer
from sparkring.pipelines.parallel.allreduce.hierarchical import HierarchicalReducer
from sparkring.pipelines.parallel.allreduce.horovod_sums import HorovodSums
from sparkring.pipelines.parallel.allreduce.socket_open import open_socket_sums
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Ranks, host_leaders, leaders
from sparkring.pipelines.parallel.shared_memory.peer_processes import PeerProcesses, process_identity
from sparkring.pipelines.parallel.shared_memory.segment import UNUSED_SIZES, Segment, open_segments

BY_HOROVOD = RingConfig()
"""Sums as they are without any key."""


def sums_by_sockets(context: RankContext, ring: RingConfig) -> bool:
    """Whether gradients are summed between hosts beside Horovod."""
    return ring.allreduce != "horovod" and context.device == "cpu" and len(set(context.hosts)) > 1


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


class OpenGradientReducer(Protocol):
    """Opens a reducer, as ``open_gradient_reducer`` does; a benchmark may pass its own."""

    def __call__(self, communicator: Communicator, sizes: Sequence[int], dtype: torch.dtype, *, device: torch.device,
                 group: Ranks = (), ring: RingConfig = BY_HOROVOD) -> GradientReducer:
        """See ``open_gradient_reducer``."""
        ...


def open_gradient_reducer(communicator: Communicator, sizes: Sequence[int], dtype: torch.dtype, *, device: torch.device,
                          group: Ranks = (), ring: RingConfig = BY_HOROVOD) -> GradientReducer:
    """Open the fastest reducer that all ranks can use. Every rank of the ring calls this at the same point, with its own group.

    Args:
        communicator: The joined ring; it has the process sets of the group and of its leaders.
        sizes: Elements of each buffer; the same on all ranks of a group.
        dtype: float32 or float64.
        device: Where the buffers live. On a GPU Horovod (NCCL) sums inside and between hosts.
        group: The ranks that sum together, this one among them, ascending; default all.
        ring: How gradients are summed between hosts.
    """
    context = communicator.context
    group = group or tuple(range(context.size))
    leading, by_sockets = host_leaders(group, context.hosts), sums_by_sockets(context, ring)
    first_in_memory = device.type == "cpu" and not (by_sockets and ring.allreduce in {"ring", "tree"})
    shared = _open_shared(communicator, sizes, dtype, group, serves=len(leading) < len(group)) if first_in_memory else None
    if shared is not None and not (len(leading) == 1 or by_sockets or communicator.has_process_set(leading)):
        shared = None
    summing = group if shared is None else leading
    between: SumsBetween | None = None
    description = "ring" if shared is None else f"ring of {len(leading)} hosts"
    if by_sockets:
        between, description = open_socket_sums(communicator, sizes, dtype, summing, ring)
    elif len(summing) > 1 and context.rank in summing:
        between = HorovodSums(communicator, summing)
    if shared is None:
        return DirectReducer(context, [torch.zeros(size, dtype=dtype, device=device) for size in sizes], between, description=description)
    one_host = len(leading) == 1
    return HierarchicalReducer(context, shared.segments, shared.peers, one_host=one_host, between=between,
                               description="shared memory" if one_host else f"shared memory, {description}")


class _Shared(NamedTuple):
    """The memory of the ranks of a host that sum together."""

    segments: Sequence[Segment]
    peers: PeerProcesses


def _open_shared(communicator: Communicator, sizes: Sequence[int], dtype: torch.dtype, group: Ranks, *, serves: bool) -> _Shared | None:
    """Open shared memory; None if it does not serve, or some host has none.

    Args:
        communicator: The joined ring.
        sizes: Elements of each buffer.
        dtype: Their type.
        group: The ranks that sum together.
        serves: Whether it has several ranks on a host.
    """
    context = communicator.context
    if not context.shared_memory or len(leaders(context.hosts)) == context.size:
        return None
    local = tuple(rank for rank in group if rank in context.local_ranks)
    identities = communicator.gather(torch.tensor([process_identity()]), name="reducer.processes").tolist()
    segments = open_segments(communicator, sizes if serves else UNUSED_SIZES, dtype, ranks=local)
    return _Shared(segments, PeerProcesses({rank: identities[rank] for rank in local})) if segments is not None and serves else None
