"""A rank's identity in its ring: what the launcher gives each process before it imports or joins anything.

Plain data; imports neither horovod nor torch nor pyspark.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """One rank's identity in the ring."""

    rank: int
    """This rank, 0 <= rank < size. Ranks of one host are consecutive."""
    hosts: tuple[int, ...]
    """Host number of each rank, ascending from 0, e.g. ``(0, 0, 1)``: two ranks on the first host, one on the second."""
    device: str
    """``cpu`` or ``cuda:0`` (the one device that this process can see)."""
    token: str
    """Random name of this launch, the same on all ranks; 32 hex digits."""
    deadline_s: float
    """Seconds to wait for another rank before the ring is given up."""
    shared_memory: bool
    """Whether ranks of one host may sum through shared memory."""

    @property
    def size(self) -> int:
        """Ranks of the ring."""
        return len(self.hosts)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """Ranks on this rank's host, this one included."""
        return tuple(rank for rank, host in enumerate(self.hosts) if host == self.hosts[self.rank])

    @property
    def sums_in_memory(self) -> bool:
        """Whether gradients should pass through shared memory alone: all ranks are on one host, on its CPU."""
        return self.shared_memory and self.device == "cpu" and len(set(self.hosts)) == 1
