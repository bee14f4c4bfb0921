"""Memory that the ranks of one host share: a segment a rank, mapped by all of them, gone when they are.

    segment of a rank   | counters: 3 per buffer, int64 | buffer 0 | buffer 1 | ...      each part on a 64-byte line

The file in /dev/shm has a name only while the ranks open it; after that it lives as long as a rank maps it, so a killed
ring leaves nothing behind. It is mode 0600 and carries the launch's random token in its name.
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

FOLDER = Path("/dev/shm")  # noqa: S108 - the memory file system; files are O_EXCL, 0600 and randomly named
LINE = 64
PHASES = 3
UNUSED_SIZES = (1,)
"""Sizes for a rank that shares no memory itself and takes part because others do: memory is reserved for real."""


@dataclass(frozen=True)
class Segment:
    """One rank's segment as this process sees it."""

    rank: int
    counters: NDArray[np.int64]
    """(phases, buffers) the round up to which the rank has come, a phase and buffer."""
    buffers: tuple[Tensor, ...]
    """Flat tensors in the shared memory."""


class SupportsAgree(Protocol):
    """What is needed of a communicator."""

    context: RankContext

    def agree(self, *, mine: bool, name: str) -> bool:
        """Whether every rank says yes."""
        ...


def open_segments(communicator: SupportsAgree, sizes: Sequence[int], dtype: torch.dtype, *, ranks: Ranks = ()) -> list[Segment] | None:
    """Create this rank's segment and map those of other ranks of its host.

    Every rank of the ring calls this; it answers alike on all of them.

    Args:
        communicator: The joined ring.
        sizes: Elements of each buffer; the same on all of ``ranks``.
        dtype: Of the buffers.
        ranks: Those of this host to map, this one among them, ascending; default all.
    Returns:
        Their segments, ascending; None if some rank of some host cannot have them (no /dev/shm, not
        enough room in it, or a container that hides it from its neighbours).
    """
    context = communicator.context
    length = _layout_bytes(sizes, dtype)
    path = _path(context.token, context.rank)
    try:
        created = _create(path, length)
        if not communicator.agree(mine=created, name="segments.created"):
            return None
        maps = {rank: _map(_path(context.token, rank), length) for rank in ranks or context.local_ranks}
        if not communicator.agree(mine=None not in maps.values(), name="segments.mapped"):
            return None
    finally:
        path.unlink(missing_ok=True)
    return [_view(rank, memory, sizes, dtype) for rank, memory in maps.items() if memory is not None]


def private_segment(sizes: Sequence[int], dtype: torch.dtype) -> Segment:
    """The segment of a rank that is alone: nobody else maps it."""
    return _view(0, mmap.mmap(-1, _layout_bytes(sizes, dtype)), sizes, dtype)


def _path(token: str, rank: int) -> Path:
    return FOLDER / f"sparkring-{token}-{rank}"


def _layout_bytes(sizes: Sequence[int], dtype: torch.dtype) -> int:
    return _aligned(PHASES * len(sizes) * 8) + sum(_aligned(size * dtype.itemsize) for size in sizes)


def _aligned(length: int) -> int:
    return -(-length // LINE) * LINE


def _create(path: Path, length: int) -> bool:
    """Reserve the memory for real: a file that is only truncated to size would kill us with SIGBUS when it runs full."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError:
        return False
    try:
        os.posix_fallocate(handle, 0, length)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _map(path: Path, length: int) -> mmap.mmap | None:
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
