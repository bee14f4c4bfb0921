"""Memory that the ranks of one host share: one segment per rank, which all of them map.

    segment of a rank   | counters: 3 per buffer, int64 | buffer 0 | buffer 1 | ...      each part on a 64-byte line

A segment is a file in /dev/shm that has a name only while the ranks open it (named_files.py). After that it lives as long as a
rank maps it, so a ring that is killed later leaves nothing behind. Its mode is 0600, and its name holds the launch's random token.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Ranks
from sparkring.pipelines.parallel.shared_memory.named_files import create_locked, segment_path

LINE = 64
"""Bytes of a cache line; two ranks never write to the same one."""
PHASES = 3
"""Counters of each buffer."""
UNUSED_SIZES = (1,)
"""Buffer sizes for a rank that only takes part because its peers share memory: memory is reserved, so it asks for the least."""


@dataclass(frozen=True)
class Segment:
    """One rank's segment as this process sees it."""

    rank: int
    counters: NDArray[np.int64]
    """(phases, buffers): the last round in which the rank reached a phase with a buffer."""
    buffers: tuple[Tensor, ...]
    """Flat tensors in the shared memory."""


class SupportsAgree(Protocol):
    """The part of a communicator that is needed here."""

    context: RankContext

    def agree(self, *, mine: bool, name: str) -> bool:
        """Whether every rank says yes."""
        ...


def open_segments(communicator: SupportsAgree, sizes: Sequence[int], dtype: torch.dtype, *, ranks: Ranks = ()) -> list[Segment] | None:
    """Create this rank's segment and map those of other ranks of its host.

    Every rank of the ring calls this, and all get the same kind of answer.

    Args:
        communicator: The joined ring.
        sizes: Elements of each buffer; the same on all of ``ranks``.
        dtype: Type of the buffers.
        ranks: Ranks of this host to map, this one among them, ascending; default all.
    Returns:
        Their segments, ascending. None if any rank of any host cannot have them: it has no /dev/shm, too little room in it, or
        runs in a container that hides it from its peers.
    """
    context = communicator.context
    length = _segment_bytes(sizes, dtype)
    path = segment_path(context.token, context.rank)
    handle = create_locked(path, length)
    try:
        if not communicator.agree(mine=handle is not None, name="segments.created"):
            return None
        maps = {rank: _map(segment_path(context.token, rank), length) for rank in ranks or context.local_ranks}
        if not communicator.agree(mine=None not in maps.values(), name="segments.mapped"):
            return None
    finally:
        if handle is not None:
            path.unlink(missing_ok=True)
            os.close(handle)
    return [_view(rank, memory, sizes, dtype) for rank, memory in maps.items() if memory is not None]


def private_segment(sizes: Sequence[int], dtype: torch.dtype) -> Segment:
    """The segment of a rank that is alone: nobody else maps it."""
    return _view(0, mmap.mmap(-1, _segment_bytes(sizes, dtype)), sizes, dtype)


def _segment_bytes(sizes: Sequence[int], dtype: torch.dtype) -> int:
    return _aligned(PHASES * len(sizes) * 8) + sum(_aligned(size * dtype.itemsize) for size in sizes)


def _aligned(length: int) -> int:
    return -(-length // LINE) * LINE


def _map(path: Path, length: int) -> mmap.mmap | None:
    """Map another rank's segment; None if it does not exist, has another size or belongs to another user."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(handle).st_size != length or os.fstat(handle).st_uid != os.getuid():
            return None
        return mmap.mmap(handle, length)
    finally:
        os.close(handle)


def _view(rank: int, memory: mmap.mmap, sizes: Sequence[int], dtype: torch.dtype) -> Segment:
    counters = np.frombuffer(memory, dtype=np.int64, count=PHASES * len(sizes)).reshape(PHASES, len(sizes))
    offset, buffers = _aligned(counters.nbytes), []
    for size in sizes:
        buffers.append(torch.frombuffer(memory, dtype=dtype, count=size, offset=offset))
        offset += _aligned(size * dtype.itemsize)
    return Segment(rank, counters, tuple(buffers))
