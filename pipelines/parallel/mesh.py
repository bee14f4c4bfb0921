"""Which ranks act together: from the hosts of the ranks to one canonical list of process sets.

Pure: integers in, tuples out; imports neither horovod nor torch, so every layout is testable without a launch.

    hosts   0  0  1  1  1        ranks 0 and 1 share a host, ranks 2, 3 and 4 another
    ranks   0  1  2  3  4
    leaders 0     2              the first rank of each host: the ring between hosts
"""

from __future__ import annotations

from collections.abc import Sequence

Ranks = tuple[int, ...]


def leaders(hosts: Sequence[int]) -> Ranks:
    """The first rank of each host, ascending.

    Args:
        hosts: Host number of each rank; ranks of one host are consecutive.
    """
    return tuple(rank for rank, host in enumerate(hosts) if rank == 0 or hosts[rank - 1] != host)


def process_sets(hosts: Sequence[int]) -> tuple[Ranks, ...]:
    """The process sets that the ring needs beside Horovod's global one, in the same order on every rank.

    Sets of one rank need no ring, and a set of all ranks is the global one: Horovod refuses both as duplicates or
    useless, so neither is listed. The leaders all have the same place on their hosts, as Horovod's Gloo demands.

    Args:
        hosts: Host number of each rank; ranks of one host are consecutive.
    Returns:
        Ascending, distinct tuples of ranks.
    """
    wanted = {leaders(hosts)}
    return tuple(sorted(ranks for ranks in wanted if 1 < len(ranks) < len(hosts)))
