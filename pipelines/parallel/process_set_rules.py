"""The rules for process sets that Horovod can start on several hosts under Gloo, and the reason that it cannot start the others.

Pure: integers in, a sentence out. For each process set Horovod opens two rings beside the set's own: one of its members on a
host, and one of its members with the same *place* (0 = first rank) on their hosts. It names the second ring by the member's
place among the set's members of its host, so members that must meet may look for each other under two names:

    hosts      0 0 | 1 1         set (0, 1, 3): ranks 1 and 3 both are second on their hosts and must meet.
    ranks      0 1 | 2 3         On its host, rank 1 is second of the set, rank 3 is first:
    place      0 1 | 0 1         one waits at "cross 1", the other at "cross 0", until the timeout ends both.

Two rings under one name overwrite each other's addresses, which matters once one of them has two members.
Source: ``GlooContext::InitializeForProcessSet`` in horovod/common/gloo/gloo_context.cc of Horovod 0.28.1; tested with
real ranks in tests/parallel/test_process_sets.py.
"""

from __future__ import annotations

from collections.abc import Sequence


def why_not_startable(ranks: tuple[int, ...], hosts: Sequence[int]) -> str | None:
    """Explain why Horovod cannot start a process set; None if it can.

    Args:
        ranks: The set, ascending.
        hosts: Host number of each rank of the ring; ranks of one host are consecutive.
    """
    rings = _rings_across_hosts(ranks, hosts)
    for members in rings.values():
        names = {rank: _place(rank, ranks, hosts) for rank in members}
        if len(set(names.values())) > 1:
            numbers = " and ".join(f"rank {rank} is number {name}" for rank, name in names.items())
            return (f"ranks {list(members)} have the same place on their hosts and have to meet, but {numbers} of the set on its host, "
                    "and Horovod makes them meet by that number")
    owners: dict[int, tuple[int, ...]] = {}
    for members in rings.values():
        name = _place(members[0], ranks, hosts)
        other = owners.setdefault(name, members)
        if other != members and max(len(other), len(members)) > 1:
            return (f"ranks {list(other)} and ranks {list(members)} have two places on their hosts, but all are number {name} of the set "
                    "there, and Horovod makes both groups meet under that number")
    return None


def _rings_across_hosts(ranks: tuple[int, ...], hosts: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Members of the set by their place on their hosts."""
    everyone = tuple(range(len(hosts)))
    rings: dict[int, tuple[int, ...]] = {}
    for rank in ranks:
        place = _place(rank, everyone, hosts)
        rings[place] = (*rings.get(place, ()), rank)
    return rings


def _place(rank: int, among: tuple[int, ...], hosts: Sequence[int]) -> int:
    """Number of ranks in ``among`` that come before ``rank`` on its host."""
    return sum(1 for other in among if other < rank and hosts[other] == hosts[rank])
