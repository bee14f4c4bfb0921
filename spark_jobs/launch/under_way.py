"""The rings of this driver that are under way, and the GPUs that each of them has: an application may run several at once.

Not here: which GPUs there are (gpus/source.py), how many rings fit (spark/rings_at_once.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class RingsUnderWay:
    """Those that were begun and have not ended; threads start them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gpus: list[tuple[str, ...]] = []
        """Of each ring."""

    @contextmanager
    def one(self, gpus: Sequence[str], *, most: int) -> Iterator[tuple[str, ...]]:
        """One ring, until it has ended: gets the first ``most`` of these GPUs that no other one has."""
        with self._lock:
            others = {gpu for held in self._gpus for gpu in held}
            mine = tuple(gpu for gpu in gpus if gpu not in others)[:most]
            self._gpus.append(mine)
        try:
            yield mine
        finally:
            with self._lock:
                self._gpus.remove(mine)

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self._gpus) > 1


RINGS = RingsUnderWay()
"""Those of this driver. Only a module is common to all threads that call ``run_ring``."""
