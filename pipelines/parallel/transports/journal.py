"""The last actions of a rank, kept for the error of a wait that fails.

Horovod's own stall check is silent under Gloo, so every wait of a transport has a deadline, and its error shows this journal.
Pure: imports neither torch nor horovod.
"""

from __future__ import annotations

import time
from collections import deque

KEPT = 12
"""Actions that are kept."""


class Journal:
    """The last KEPT actions of this rank, newest last. A note takes under a microsecond: text is made when it is read."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str, object]] = deque(maxlen=KEPT)

    def note(self, what: str, about: object = "") -> None:
        """Remember an action.

        Args:
            what: The action, e.g. ``send``.
            about: Its object; turned into text only when the journal is read.
        """
        self._lines.append((time.monotonic(), what, about))

    def last(self) -> tuple[str, ...]:
        """The actions with their age, e.g. ``2.31 s ago: send micro-batch 3 on edge f1 0>1``."""
        now = time.monotonic()
        return tuple(f"{now - when:.2f} s ago: {what} {about}".rstrip() for when, what, about in tuple(self._lines))
