"""Telling the kernel to begin with writing what a file was just given, so that the flush at its end has little left to wait for.

Linux keeps what was written in memory until somebody flushes it: a large file then goes to the disk only once it is whole. Where the
system has no such call, nothing happens.

Source: sync_file_range(2), https://man7.org/linux/man-pages/man2/sync_file_range.2.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

_BEGIN = 2
"""SYNC_FILE_RANGE_WRITE: start with those pages that are not on their way yet, and wait for none."""


def begin_writeback(handle: int, *, start: int, length: int) -> None:
    """Have so many bytes of an open file written, beginning at ``start``; promises nothing: only a flush does."""
    call = _call()
    if call is not None:
        call(handle, start, length, _BEGIN)  # where the file system refuses, the flush does it all


@cache
def _call() -> Callable[[int, int, int, int], int] | None:
    """The system's function, if it has one."""
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes, found.restype = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint], ctypes.c_int
    call: Callable[[int, int, int, int], int] = found
    return call
