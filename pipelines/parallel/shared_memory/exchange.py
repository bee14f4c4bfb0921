"""What the ranks of a ring on one host say to each other, through memory that all of them map.

Where gradients pass through shared memory, Horovod's threads sleep for a tenth of a second at a time so as to leave the cores
alone, and each word by Horovod waits for them: an epoch's end took a second on the smallest dataset. Words go this way then.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from sparkring.errors import RingError
from sparkring.pipelines.parallel.shared_memory.rounds import BUFFERS, PIECE_BYTES, MemoryRounds
from sparkring.pipelines.parallel.shared_memory.segment import Segment, SupportsAgree, open_segments, private_segment

HEAD_BYTES = 16


class MemoryExchange:
    """Every rank's bytes on every rank; the same calls in the same order on all of them, from one thread."""

    def __init__(self, segments: Sequence[Segment], rank: int, *, deadline_s: float) -> None:
        """Take the segments of all ranks, by rank, each with the buffers of ``memory_rounds``; returns when all have come."""
        self._rounds = MemoryRounds(segments, rank, deadline_s=deadline_s)
        self._rounds.exchange_identities()

    def gather(self, mine: Tensor, name: str, *, deadline_s: float) -> list[Tensor]:
        """All ranks' bytes, by rank.

        Args:
            mine: Flat bytes; their number may differ, 0 included.
            name: The same on all ranks.
            deadline_s: Seconds to wait for the others.
        Raises:
            RingError: another rank says something else; ranks are out of step.
            DeadlinePassed: a rank does not come.
            RingEnded: the process of one has ended.
        """
        word = zlib.crc32(name.encode())
        heads = [head[:HEAD_BYTES].view(torch.int64).tolist()
                 for head in self._rounds.exchange(torch.tensor([len(mine), word]).view(torch.uint8), name, deadline_s=deadline_s)]
        others = [rank for rank, (_, other) in enumerate(heads) if other != word]
        if others:
            raise RingError(f"{name}: ranks {others} say something else at this point; all ranks must run the same version of sparkring.")
        everything = [torch.empty(length, dtype=torch.uint8) for length, _ in heads]
        for start in range(0, max(length for length, _ in heads), PIECE_BYTES):
            pieces = self._rounds.exchange(mine[start:start + PIECE_BYTES], name, deadline_s=deadline_s)
            for whole, piece in zip(everything, pieces, strict=True):
                part = whole[start:start + PIECE_BYTES]
                part.copy_(piece[:len(part)])
        return everything


def open_exchange(communicator: SupportsAgree) -> MemoryExchange | None:
    """The exchange of a ring whose ranks share a host, or None where they cannot; every rank calls this at the same point."""
    context = communicator.context
    if not context.sums_in_memory:
        return None
    segments = [private_segment(BUFFERS, torch.uint8)] if context.size == 1 else open_segments(communicator, BUFFERS, torch.uint8)
    return None if segments is None else MemoryExchange(segments, context.rank, deadline_s=context.deadline_s)
