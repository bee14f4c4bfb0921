"""A pool of memory for arrays: their bytes return to it when the last view of them is gone.

A loader makes arrays of some megabytes all the time. New memory costs more than filling it: the system clears every page
before it hands it out, and takes it back when the array is freed. The pool keeps it.

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
"""Smaller arrays, in bytes, come from the allocator, which does not ask the system for them."""


class BufferPool:
    """A pool of memory for arrays. Safe to use from several threads."""

    def __init__(self) -> None:
        self._free: dict[int, deque[NDArray[np.uint8]]] = {}
        self._guard = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[np.generic]:
        """An uninitialised array in C order; its memory returns to the pool when its last view is gone."""
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
        # A NumPy view refers to the owner of the memory, not to the array it was made from, so the owner must be no array itself.
        lease = (ctypes.c_char * capacity).from_buffer(memory.data)
        weakref.finalize(lease, free.append, memory).atexit = False
        array: NDArray[np.generic] = np.frombuffer(memoryview(lease), dtype=kind, count=count).reshape(shape)
        return array

    def clear(self) -> None:
        """Return the pool's memory to the system; memory still in use follows when its last view is gone."""
        with self._guard:
            self._free = {}


def size_class(size: int) -> int:
    """The smallest size class that holds ``size`` bytes: four per doubling, so at most a quarter is unused."""
    step = 1 << max(0, size.bit_length() - 3)
    return -(-size // step) * step
