"""A full memory barrier for processors that reorder stores, such as ARM; Python has no other."""

from __future__ import annotations

import threading

_lock = threading.Lock()


def fence() -> None:
    """Order all loads and stores before this call before all that follow it.

    Releasing a lock and taking it again is a full barrier: nothing moves out of either critical section, in either direction.
    """
    for _ in range(2):
        with _lock:
            pass
