"""The groups of ranks that act together: each rank's stage, replica and shard, and one canonical list of process sets.

Pure: integers in, tuples out. Imports neither horovod nor torch, so every layout can be tested without a launch.

    Mesh(replicas=(2, 1), shards=2)            rank of (stage, replica, shard)
        stage 0    replica 0   0  1            shards of a layer:     (0, 1) (2, 3) (4, 5)
                   replica 1   2  3            replicas of a stage:   (0, 2) (1, 3); stage 1 has one replica
        stage 1    replica 0   4  5            activations pass:      0-4 1-5 2-4 3-5

    hosts   0  0  1  1  1        ranks 0 and 1 share a host, ranks 2, 3 and 4 another
    leaders 0     2              the first rank of each host: the ring between hosts
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import lcm
from typing import NamedTuple

from sparkring.conf.schema import TransportName
from sparkring.errors import LayoutRefused

Ranks = tuple[int, ...]


class Coordinate(NamedTuple):
    """A rank's position in the mesh."""

    stage: int
    replica: int
    shard: int


@dataclass(frozen=True)
class Mesh:
    """Stages, each with its own number of replicas; every replica is dealt to the same number of shards."""

    replicas: tuple[int, ...] = (1,)
    """Copies of each stage."""
    shards: int = 1
    """Ranks that together hold one copy of a stage, each a slice of its layers."""

    def __post_init__(self) -> None:
        if not self.replicas or min(*self.replicas, self.shards) < 1:
            raise LayoutRefused(f"replicas={self.replicas} and shards={self.shards}: every stage needs at least one replica of at least "
                                "one shard; give numbers from 1 up, one a stage.")

    def __str__(self) -> str:
        cut = f", each of {self.shards} shards" if self.shards > 1 else ""
        return f"stages of {' + '.join(map(str, self.replicas))} replicas{cut}"

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline."""
        return len(self.replicas)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(self.replicas) * self.shards

    @cached_property
    def _first_ranks(self) -> Ranks:
        """First rank of each stage, followed by the number of ranks."""
        return tuple(accumulate((count * self.shards for count in self.replicas), initial=0))

    def rank(self, stage: int, replica: int, shard: int = 0) -> int:
        """The rank at a coordinate."""
        assert 0 <= replica < self.replicas[stage], f"stage {stage} has no replica {replica}"
        assert 0 <= shard < self.shards, f"there is no shard {shard}"
        return self._first_ranks[stage] + replica * self.shards + shard

    def coordinate(self, rank: int) -> Coordinate:
        """The stage, replica and shard of a rank."""
        assert 0 <= rank < self.size, f"there is no rank {rank}"
        stage = next(stage for stage in range(self.num_stages) if rank < self._first_ranks[stage + 1])
        replica, shard = divmod(rank - self._first_ranks[stage], self.shards)
        return Coordinate(stage, replica, shard)

    def replica_set(self, stage: int, shard: int) -> Ranks:
        """The ranks that hold the same parameters, and so sum gradients."""
        return tuple(self.rank(stage, replica, shard) for replica in range(self.replicas[stage]))

    def shard_set(self, stage: int, replica: int) -> Ranks:
        """The ranks that together compute one copy of a stage."""
        return tuple(self.rank(stage, replica, shard) for shard in range(self.shards))

    def tied_set(self, stages: Iterable[int], shard: int) -> Ranks:
        """The ranks of all replicas of several stages that hold the same tied parameters."""
        return tuple(rank for stage in sorted(set(stages)) for rank in self.replica_set(stage, shard))

    def worker(self, stage: int, micro_batch: int) -> int:
        """The replica of ``stage`` that does a micro-batch; micro-batches are dealt round-robin."""
        return micro_batch % self.replicas[stage]

    def peer_pairs(self, *, wraps: bool = False) -> tuple[Ranks, ...]:
        """Pairs of ranks between which activations pass: same shards, and replicas that do a common micro-batch.

        Args:
            wraps: Whether the last stage also sends to the first, as with several chunks per stage.
        Returns:
            Ascending, distinct pairs of ascending ranks.
        """
        following = [(stage, stage + 1) for stage in range(self.num_stages - 1)]
        if wraps and self.num_stages > 1:
            following.append((self.num_stages - 1, 0))
        pairs = {(self.rank(one, self.worker(one, micro_batch), shard), self.rank(other, self.worker(other, micro_batch), shard))
                 for one, other in following
                 for micro_batch in range(lcm(self.replicas[one], self.replicas[other]))
                 for shard in range(self.shards)}
        return tuple(sorted({(min(pair), max(pair)) for pair in pairs}))

    def process_sets(self, hosts: Sequence[int], *, transport: TransportName = "horovod", wraps: bool = False,
                     tied: Sequence[Sequence[int]] = ()) -> tuple[Ranks, ...]:
        """The process sets that this mesh needs beside Horovod's global one, in the same order on every rank.

        A set of one rank needs no ring. A set of all ranks is the global one, which Horovod refuses to start a second time.

        Args:
            hosts: Host number of each rank, which must be as many as the mesh has.
            transport: Carries activations; ``horovod`` needs a set for each pair of ranks that exchange them.
            wraps: Whether the last stage also sends to the first.
            tied: For each group of tied parameters, the stages that hold them.
        Returns:
            Ascending, distinct tuples of ranks.
        Raises:
            LayoutRefused: the mesh has another number of ranks.
        """
        if len(hosts) != self.size:
            raise LayoutRefused(f"{self} are {self.size} ranks, the ring has {len(hosts)}; change the number of ranks or the layout.")
        wanted = {self.replica_set(stage, shard) for stage in range(self.num_stages) for shard in range(self.shards)}
        wanted |= {self.shard_set(stage, replica) for stage, count in enumerate(self.replicas) for replica in range(count)}
        wanted |= {self.tied_set(stages, shard) for stages in tied for shard in range(self.shards)}
        if messages_by_horovod(transport):
            wanted |= set(self.peer_pairs(wraps=wraps))
        return canonical_sets(wanted, size=self.size)


def messages_by_horovod(transport: TransportName) -> bool:
    """Whether messages between stages pass through Horovod: each pair of ranks needs a process set, and the ring a short cycle."""
    match transport:
        case "horovod":
            return True
        case "sidecar":
            return False


def leaders(hosts: Sequence[int]) -> Ranks:
    """The first rank of each host, ascending.

    Args:
        hosts: Host number of each rank; ranks of one host are consecutive.
    """
    return tuple(rank for rank, host in enumerate(hosts) if rank == 0 or hosts[rank - 1] != host)


def host_leaders(group: Ranks, hosts: Sequence[int]) -> Ranks:
    """The first rank of ``group`` on each host, ascending: the ring that sums between hosts."""
    return tuple(rank for place, rank in enumerate(group) if place == 0 or hosts[group[place - 1]] != hosts[rank])


def process_sets(hosts: Sequence[int]) -> tuple[Ranks, ...]:
    """The process sets that plain data parallelism needs beside Horovod's global one, in the same order on every rank.

    Args:
        hosts: Host number of each rank; ranks of one host are consecutive.
    Returns:
        Ascending, distinct tuples of ranks.
    """
    return canonical_sets({leaders(hosts)}, size=len(hosts))


def canonical_sets(sets: Iterable[Ranks], *, size: int) -> tuple[Ranks, ...]:
    """The process sets in the one order that every rank must give Horovod.

    Args:
        sets: In any order, some perhaps twice.
        size: Ranks of the ring.
    Returns:
        Ascending and distinct, without sets of one rank (they need no ring) and of all ranks (Horovod's global set).
    """
    return tuple(sorted({tuple(sorted(ranks)) for ranks in sets if 1 < len(ranks) < size}))
