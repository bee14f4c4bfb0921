"""What a rank did last, kept for the error of a wait that does not end, and the signals by which links report such a wait.

Horovod's own stall check is silent under Gloo, so every wait of a transport has a deadline of ours. Pure: no torch, no horovod.
"""

from __future__ import annotations

import time
from collections import deque

KEPT = 12


class Journal:
    """The last KEPT things that this rank did, the newest last. Noting costs under a microsecond: text is made when it is read."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str, object]] = deque(maxlen=KEPT)

    def note(self, what: str, about: object = "") -> None:
        """Remember ``what`` was done; ``about`` is turned into text only if somebody reads the journal."""
        self._lines.append((time.monotonic(), what, about))

    def last(self) -> tuple[str, ...]:
        """The lines with their age, e.g. ``2.31 s ago: send edge f1 0>1 slot 3``."""
        now = time.monotonic()
        return tuple(f"{now - when:.2f} s ago: {what} {about}".rstrip() for when, what, about in tuple(self._lines))


class LinkTimeout(Exception):
    """A link waited until the deadline."""


class PeerEnded(Exception):
    """A link found that the other rank is gone, or, if it cannot tell which, some rank; the message says how it noticed."""

    def __init__(self, how: str, *, whole_ring: bool = False) -> None:
        self.how, self.whole_ring = how, whole_ring
        super().__init__(how)

    def clause(self, peer: int) -> str:
        """For an error, after "but"."""
        return f"the ring has ended, so some rank raised or died ({self.how})" if self.whole_ring else f"rank {peer} has ended ({self.how})"


def seconds_left(until: float) -> float:
    """Seconds to the moment ``until`` of the monotonic clock.

    Raises:
        Silence: it has passed.
    """
    left = until - time.monotonic()
    if left <= 0:
        raise LinkTimeout
    return left
