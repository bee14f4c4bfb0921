"""Summing over a set whose ranks share a host, through memory that all of them map: no cycle of Horovod's to wait for.

    round r     each rank copies a chunk into its buffer r % 2 and says FILLED r;
                once all of the set have said so, each reads all buffers and sums them, in the order of ranks

Two buffers are enough without a word back: who fills a buffer for round r + 2 has seen everybody say FILLED r + 1, and they
said that after reading round r. Every rank sums the same numbers in the same order, so all get the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from sparkring.errors import DeadlinePassed
from sparkring.pipelines.parallel.communicator import Communicator
from sparkring.pipelines.parallel.mesh import Ranks
from sparkring.pipelines.parallel.set_reducer import HorovodSetReducer, SetReducer
from sparkring.pipelines.parallel.shared_buffers import fence
from sparkring.pipelines.parallel.shared_segment import Segment, open_segments

CHUNK_BYTES = 1 << 20
FILLED = 0
"""Row of the counters; the other rows are not used here."""
LOOKS = 200
"""How often a rank looks before it sleeps between looks: shards finish a layer at nearly the same time."""
NAP_S = 0.00005


class MemorySetReducer:
    """Shared memory inside one host."""

    def __init__(self, segments: Sequence[Segment], place: int, *, deadline_s: float) -> None:
        """Take the set's segments in the order of ranks.

        Args:
            segments: Each with two buffers of as many bytes.
            place: Of this rank among them.
            deadline_s: Seconds to wait for another rank.
        """
        self.size, self.place = len(segments), place
        self._segments, self._deadline_s = segments, deadline_s
        self._round = 0

    def sum_(self, tensor: Tensor, name: str) -> None:
        """Sum chunk by chunk; the name is for the error only, as order alone tells sums apart here."""
        flat = tensor.view(-1)
        step = CHUNK_BYTES // tensor.dtype.itemsize
        for start in range(0, len(flat), step):
            self._sum_chunk(flat[start:start + step], name)

    def _sum_chunk(self, chunk: Tensor, name: str) -> None:
        self._round += 1
        number, size = self._round % 2, chunk.numel() * chunk.dtype.itemsize
        parts = [segment.buffers[number][:size].view(chunk.dtype) for segment in self._segments]
        parts[self.place].copy_(chunk)
        fence()
        self._segments[self.place].counters[FILLED, number] = self._round
        self._wait(number, name)
        if chunk.dtype.is_floating_point and chunk.dtype.itemsize < 4:
            chunk.copy_(torch.stack([part.float() for part in parts]).sum(dim=0))
            return
        torch.add(parts[0], parts[1], out=chunk)
        for part in parts[2:]:
            chunk.add_(part)

    def _wait(self, number: int, name: str) -> None:
        """Until all of the set have filled this round."""
        looks, until = 0, time.monotonic() + self._deadline_s
        while any(segment.counters[FILLED, number] < self._round for segment in self._segments):
            looks += 1
            if looks > LOOKS:
                if time.monotonic() > until:
                    late = [segment.rank for segment in self._segments if segment.counters[FILLED, number] < self._round]
                    raise DeadlinePassed(f"{name}: ranks {late} did not join within {self._deadline_s:g} s; see their last lines, "
                                         "or raise train.ring.deadline_s if they are only slow.")
                time.sleep(NAP_S)
        fence()


def open_set_reducer(communicator: Communicator, ranks: Ranks) -> SetReducer:
    """The best reducer that a set can use; every rank of the ring calls this at the same point, each with its own set.

    Args:
        communicator: The joined ring, with the set's process set.
        ranks: The set, ascending, this rank among them; it may be alone.
    Returns:
        One through memory where the set's ranks share a host and can map it, else one by Horovod.
    """
    context = communicator.context
    if context.shared_memory and context.device == "cpu":
        local = tuple(rank for rank in ranks if rank in context.local_ranks)
        segments = open_segments(communicator, (CHUNK_BYTES, CHUNK_BYTES), torch.uint8, ranks=local)
        if segments is not None and len(local) == len(ranks) > 1:
            return MemorySetReducer(segments, ranks.index(context.rank), deadline_s=context.deadline_s)
    return HorovodSetReducer(communicator, ranks)
