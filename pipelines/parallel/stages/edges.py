"""The edges that a schedule's transfers take: from actions of workers to messages between ranks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Schedule, Worker
from sparkring.pipelines.parallel.transports.base import Edge


def edges_of(schedule: Schedule, rank_of: Callable[[Worker], int]) -> list[Edge]:
    """All edges on which the ranks of a schedule exchange messages, for one shard.

    Args:
        schedule: A schedule with transfers.
        rank_of: The rank of a worker; each shard has its own ranks.
    """
    kinds = (Kind.SEND_F, Kind.SEND_B)
    sends = (action for actions in schedule.actions.values() for action in actions if action.kind in kinds)
    return sorted({edge_of(schedule, action, rank_of) for action in sends})


def edge_of(schedule: Schedule, action: Action, rank_of: Callable[[Worker], int]) -> Edge:
    """The edge of a transfer, named by its direction and the chunk behind the border that it crosses."""
    mine, other = rank_of(schedule.owner(action.chunk, action.micro_batch)), rank_of(schedule.peer(action))
    sends = action.kind in (Kind.SEND_F, Kind.SEND_B)
    forward = action.kind in (Kind.SEND_F, Kind.RECV_F)
    behind = action.chunk + 1 if action.kind in (Kind.SEND_F, Kind.RECV_B) else action.chunk
    source, target = (mine, other) if sends else (other, mine)
    return Edge(source, target, f"{'f' if forward else 'b'}{behind}")


def next_receives(actions: Sequence[Action], edge: Callable[[Action], Edge]) -> dict[Action | None, list[Action]]:
    """The receives to announce after each receive: the next one on its edge. Under None: those to announce at the start."""
    following: dict[Action | None, list[Action]] = {None: []}
    last: dict[Edge, Action] = {}
    for action in actions:
        if action.kind in (Kind.RECV_F, Kind.RECV_B):
            following.setdefault(last.get(edge(action)), []).append(action)
            last[edge(action)] = action
    return following
