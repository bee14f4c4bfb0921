"""The interface of sums between hosts, and of any that pass through a network: started at once, looked at later."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class Awaited(NamedTuple):
    """Whom a sum waits for."""

    who: str
    """In words, e.g. ``rank 2 on beta``."""
    ranks: tuple[int, ...] = ()
    """Their numbers, as far as known."""


class SumsBetween(Protocol):
    """Sums numbered buffers over some ranks. In each step each buffer is started once, in any order."""

    def start(self, index: int, buffer: Tensor) -> None:
        """Start to replace ``buffer``, number ``index``, by its sum. Does not wait."""
        ...

    def done(self, index: int) -> bool:
        """Whether a started buffer holds its sum; once it does, it may be started again.

        Raises:
            RingEnded: a rank has ended.
        """
        ...

    def nap(self) -> None:
        """Wait for a moment, or until a sum is done."""
        ...

    def awaited(self) -> Awaited:
        """Whom the first unfinished sum waits for."""
        ...

    def close(self) -> None:
        """End; no sum is under way."""
        ...
