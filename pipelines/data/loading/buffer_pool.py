"""Memory that is used again: arrays whose bytes go back to a pool when the last view of them is gone.

A loader makes arrays of some megabytes all the time. Fresh ones cost more than filling them: the system clears every page
before it hands it over, and takes it back when the array is freed. Here they stay.

    empty() -> array -> views of it, torch tensors over it -> all gone -> the pool -> empty()
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

SMALLEST = 64 << 10
"""Bytes below which the allocator itself does not ask the system."""


class BufferPool:
    """A pool of memory for arrays. Safe to use from several threads."""

    def __init__(self) -> None:
        self._free: dict[int, deque[NDArray[np.uint8]]] = {}
        self._guard = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[np.generic]:
        """An array of any content, in C order; its memory comes back by itself."""
        kind = np.dtype(dtype)
        count = math.prod(shape)
        size = count * kind.itemsize
        if size < SMALLEST:
            return np.empty(shape, dtype=kind)
        capacity = size_class(size)
        with self._guard:
            free = self._free.setdefault(capacity, deque())
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(capacity, dtype=np.uint8)
        # NumPy lets views refer to the owner of the memory past all arrays between: only what is no array sees the last of them go.
        lease = (ctypes.c_char * capacity).from_buffer(memory.data)
        weakref.finalize(lease, free.append, memory).atexit = False
        array: NDArray[np.generic] = np.frombuffer(memoryview(lease), dtype=kind, count=count).reshape(shape)
        return array

    def clear(self) -> None:
        """Give what lies in the pool back to the system, and what is still in use when that is gone."""
        with self._guard:
            self._free = {}


def size_class(size: int) -> int:
    """The least of the sizes that share memory: four to a doubling, so at most a quarter is not used."""
    step = 1 << max(0, size.bit_length() - 3)
    return -(-size // step) * step
