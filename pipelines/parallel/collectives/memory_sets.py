"""Sums over a process set whose ranks share a host, through memory that all of them map: no wait for Horovod's cycle.

Each rank shows its chunk to the others and sums all chunks in the order of ranks, so all get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.sets import HorovodSetReducer, SetReducer
from sparkring.pipelines.parallel.mesh import Ranks
from sparkring.pipelines.parallel.shared_memory.rounds import BUFFERS, PIECE_BYTES, MemoryRounds
from sparkring.pipelines.parallel.shared_memory.segment import UNUSED_SIZES, Segment, open_segments


class MemorySetReducer:
    """Sums through the shared memory of one host."""

    def __init__(self, segments: Sequence[Segment], index: int, *, deadline_s: float) -> None:
        """Take the set's segments and meet its other ranks.

        Args:
            segments: In the order of ranks, each with ``rounds.BUFFERS``.
            index: Index of this rank's segment.
            deadline_s: Seconds to wait for another rank.
        """
        self.size, self.index = len(segments), index
        self._rounds = MemoryRounds(segments, index, deadline_s=deadline_s)
        self._rounds.exchange_identities()

    def sum_(self, tensor: Tensor, name: str) -> None:
        """Sum chunk by chunk. The name is only for errors: sums are matched by their order here."""
        flat = tensor.view(-1)
        step = PIECE_BYTES // tensor.dtype.itemsize
        for start in range(0, len(flat), step):
            self._sum_chunk(flat[start:start + step], name)

    def _sum_chunk(self, chunk: Tensor, name: str) -> None:
        piece = chunk.view(torch.uint8)
        parts = [buffer[:len(piece)].view(chunk.dtype) for buffer in self._rounds.exchange(piece, name)]
        if chunk.dtype.is_floating_point and chunk.dtype.itemsize < 4:
            chunk.copy_(torch.stack([part.float() for part in parts]).sum(dim=0))
            return
        torch.add(parts[0], parts[1], out=chunk)
        for part in parts[2:]:
            chunk.add_(part)


def open_set_reducer(communicator: Communicator, ranks: Ranks) -> SetReducer:
    """Open the fastest reducer that a set can use. Every rank of the ring calls this at the same point, with its own set.

    Args:
        communicator: The joined ring, with the set's process set.
        ranks: The set, ascending, this rank among them; it may be the only one.
    Returns:
        A reducer through memory if the set's ranks share a host and can map each other's memory, else one by Horovod.
    """
    context = communicator.context
    if context.shared_memory and context.device == "cpu":
        local = tuple(rank for rank in ranks if rank in context.local_ranks)
        serves = len(local) == len(ranks) > 1
        segments = open_segments(communicator, BUFFERS if serves else UNUSED_SIZES, torch.uint8, ranks=local)
        if segments is not None and serves:
            return MemorySetReducer(segments, ranks.index(context.rank), deadline_s=context.deadline_s)
    return HorovodSetReducer(communicator, ranks)
