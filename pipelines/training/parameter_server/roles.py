"""Which ranks compute and which serve, and who serves which parameter. Pure.

    servers: peers    ranks 0 1 2 3 compute, and serve a quarter each
    servers: 1        ranks 0 1 2 compute, rank 3 serves

Rank 0, which commits checkpoints, deals the steps in both cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from sparkring.pipelines.parallel.transports.base import Edge

DEALER = 0
"""The rank that deals the steps."""


@dataclass(frozen=True)
class Roles:
    """The roles of a ring's ranks."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]

    @classmethod
    def of(cls, size: int, servers: Literal["peers"] | int) -> Self:
        """The roles of a ring.

        Args:
            size: Its ranks.
            servers: How many of them only serve, fewer than all; or that all do both.
        """
        everybody = tuple(range(size))
        return cls(everybody, everybody) if servers == "peers" else cls(everybody[:-servers], everybody[-servers:])

    @property
    def hosts(self) -> tuple[int, ...]:
        """The ranks that workers talk to: the dealer and the servers."""
        return tuple(sorted({DEALER, *self.servers}))

    @property
    def apart(self) -> bool:
        """Whether servers do not compute."""
        return self.workers != self.servers

    def edges(self, host: int) -> dict[int, tuple[Edge, Edge]]:
        """For each worker on another rank, the edges from it to the dealer or a server, and back."""
        return {worker: (Edge(worker, host, f"to{host}"), Edge(host, worker, f"from{host}")) for worker in self.workers if worker != host}
