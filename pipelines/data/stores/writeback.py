"""Starting to write a file to disk while it is still being filled, so that the final flush has little left to write.

Linux keeps written bytes in memory until they are flushed, so the disk would start only once a large file is complete.
On systems without this call nothing happens.

Source: sync_file_range(2), https://man7.org/linux/man-pages/man2/sync_file_range.2.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

_BEGIN = 2
"""SYNC_FILE_RANGE_WRITE: start writing pages that are not being written yet, and wait for none."""


def begin_writeback(handle: int, *, start: int, length: int) -> None:
    """Start writing ``length`` bytes of an open file from ``start``. Only a flush guarantees that they are on the
    disk.
    """
    call = _call()
    if call is not None:
        call(handle, start, length, _BEGIN)  # if the file system refuses, the flush writes all of it


@cache
def _call() -> Callable[[int, int, int, int], int] | None:
    """The system's function, if there is one."""
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes, found.restype = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint], ctypes.c_int
    call: Callable[[int, int, int, int], int] = found
    return call
