"""Gathering small data among the ranks of a ring on one host, through memory that all of them map.

Where gradients pass through shared memory, Horovod's threads sleep for a tenth of a second at a time to leave the cores to the
ranks, and every operation of Horovod waits for them: an epoch's end took a second on the smallest dataset. So gathers, agreements
and broadcasts pass through memory, too.
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
"""Bytes that each rank shows first: the length of its data and a checksum of the name, both int64."""


class MemoryExchange:
    """Gives every rank's bytes to every rank. All ranks make the same calls in the same order, each from one thread."""

    def __init__(self, segments: Sequence[Segment], rank: int, *, deadline_s: float) -> None:
        """Take the segments of all ranks and meet the other ranks.

        Args:
            segments: The segments by rank, each with ``rounds.BUFFERS``.
            rank: This rank.
            deadline_s: Seconds to wait for another rank.
        """
        self._rounds = MemoryRounds(segments, rank, deadline_s=deadline_s)
        self._rounds.exchange_identities()

    def gather(self, mine: Tensor, name: str, *, deadline_s: float) -> list[Tensor]:
        """All ranks' bytes, by rank.

        Args:
            mine: Flat bytes; their number may differ between ranks, and may be 0.
            name: The same on all ranks.
            deadline_s: Seconds to wait for the others.
        Raises:
            RingError: another rank gathers under another name.
            DeadlinePassed: a rank did not join in time.
            RingEnded: the process of a rank has ended.
        """
        checksum = zlib.crc32(name.encode())
        heads = [head[:HEAD_BYTES].view(torch.int64).tolist()
                 for head in self._rounds.exchange(torch.tensor([len(mine), checksum]).view(torch.uint8), name, deadline_s=deadline_s)]
        others = [rank for rank, (_, other) in enumerate(heads) if other != checksum]
        if others:
            raise RingError(f"{name}: ranks {others} perform another operation at this point; "
                            "all ranks must run the same version of sparkring.")
        everything = [torch.empty(length, dtype=torch.uint8) for length, _ in heads]
        for start in range(0, max(length for length, _ in heads), PIECE_BYTES):
            pieces = self._rounds.exchange(mine[start:start + PIECE_BYTES], name, deadline_s=deadline_s)
            for whole, piece in zip(everything, pieces, strict=True):
                part = whole[start:start + PIECE_BYTES]
                part.copy_(piece[:len(part)])
        return everything


def open_exchange(communicator: SupportsAgree) -> MemoryExchange | None:
    """Open the exchange of a ring on one host. Every rank calls this at the same point.

    Returns:
        The exchange; None if gradients do not pass through memory alone, or if ranks cannot map each other's memory.
    """
    context = communicator.context
    if not context.sums_in_memory:
        return None
    segments = [private_segment(BUFFERS, torch.uint8)] if context.size == 1 else open_segments(communicator, BUFFERS, torch.uint8)
    return None if segments is None else MemoryExchange(segments, context.rank, deadline_s=context.deadline_s)
