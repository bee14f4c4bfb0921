"""Buffers that one rank fills and another rank of the host empties. They are passed as file descriptors and have no names.

    buffer    | full? 1 byte, padded to a 64-byte line | payload ...        an anonymous file in memory, mapped by both

A buffer belongs to the rank that made it, which marks it full and fills it. The other rank copies the payload out and marks it
empty; no acknowledgement is sent. So a sender has as many buffers as were ever on their way at once, and then makes no more.
"""

from __future__ import annotations

import mmap
import os

import torch
from torch import Tensor

from sparkring.errors import EnvironmentProblem, RingError
from sparkring.pipelines.data.loading.buffer_pool import size_class
from sparkring.pipelines.parallel.shared_memory.memory_fence import fence
from sparkring.pipelines.parallel.shared_memory.segment import LINE

LEAST_CAPACITY = 1 << 14
"""Bytes of the smallest buffer's payload."""


class SharedBuffer:
    """One buffer, in the view of one of its two ranks."""

    def __init__(self, number: int, memory: mmap.mmap) -> None:
        """Take the mapped file; ``number`` identifies it between the two ranks."""
        self.number, self._memory = number, memory
        self.payload: Tensor = torch.frombuffer(memory, dtype=torch.uint8, offset=LINE)

    @property
    def full(self) -> bool:
        """Whether it holds a payload that was not copied out yet."""
        if self._memory[0]:
            return True
        fence()  # the other rank has read the payload before it cleared the mark
        return False

    def mark(self, *, full: bool) -> None:
        """Mark it full or empty."""
        fence()
        self._memory[0] = int(full)


class SendBufferPool:
    """A sender's buffers for one receiver."""

    def __init__(self) -> None:
        self._buffers: dict[int, list[SharedBuffer]] = {}
        self._count = 0

    def take(self, length: int) -> tuple[SharedBuffer, int | None]:
        """Take an empty buffer of at least ``length`` bytes, and mark it full.

        Returns:
            The buffer and, if it is new, its file descriptor, which the caller passes to the receiver and closes.

        Raises:
            EnvironmentProblem: there is no memory for a new buffer.
        """
        capacity = size_class(max(length, LEAST_CAPACITY))  # messages of changing shapes share buffers
        same = self._buffers.setdefault(capacity, [])
        for buffer in same:
            if not buffer.full:
                buffer.mark(full=True)
                return buffer, None
        handle = _create(LINE + capacity)
        buffer = SharedBuffer(self._count, mmap.mmap(handle, LINE + capacity, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))
        self._count += 1
        same.append(buffer)
        buffer.mark(full=True)
        return buffer, handle


def map_received(number: int, handle: int) -> SharedBuffer:
    """Map the other rank's buffer behind ``handle``, which is closed.

    Raises:
        RingError: the file is no buffer.
    """
    try:
        length = os.fstat(handle).st_size
        if length < LINE + LEAST_CAPACITY:
            raise RingError(f"another rank passed a file of {length} bytes as a buffer; all ranks must run the same version of sparkring.")
        return SharedBuffer(number, mmap.mmap(handle, length, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))
    finally:
        os.close(handle)


def _create(length: int) -> int:
    """An anonymous file in memory, reserved at once: writing to one that is only truncated to size may end in SIGBUS."""
    handle = os.memfd_create("sparkring", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(handle, 0, length)
    except OSError as error:
        os.close(handle)
        raise EnvironmentProblem(f"no shared memory for a message of {length} bytes ({error.strerror}); give the ranks more memory, make "
                                 "micro-batches smaller, or set train.ring.shared_memory to false.") from None
    return handle
