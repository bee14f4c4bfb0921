"""From computation to complete lists: adds sends, receives and the end of the step.

    stage 0 of two, bare     F0         F1                 B0         B1
    with transfers           F0 SEND_F0 F1 SEND_F1 RECV_B0 B0 RECV_B1 B1 REDUCE STEP

A receive stands right before the action that needs it, and a send right after the action that made it. Since a send never
waits, a list with transfers progresses whenever the bare one does. Neighbouring chunks of one worker need no transfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sparkring.pipelines.parallel.schedules.schedule import CLOSING, COMPUTE, Action, Kind, Schedule


def with_transfers(schedule: Schedule) -> Schedule:
    """The schedule with ``SEND`` and ``RECV`` where chunks of two workers meet, closed by ``REDUCE`` and ``STEP``.

    Args:
        schedule: Lists of computation; existing transfers are replaced.
    """
    lists = {worker: (*_with_transfers(schedule, actions), *map(Action, CLOSING)) for worker, actions in schedule.actions.items()}
    return replace(schedule, actions=lists)


def without_transfers(schedule: Schedule) -> Schedule:
    """The schedule with computation alone."""
    return replace(schedule, actions={worker: tuple(action for action in actions if action.kind in COMPUTE)
                                      for worker, actions in schedule.actions.items()})


def _with_transfers(schedule: Schedule, actions: Sequence[Action]) -> Iterator[Action]:
    for action in actions:
        kind, chunk, micro_batch = action
        if kind not in COMPUTE:
            continue
        from_before = chunk > 0 and schedule.crosses(chunk - 1, micro_batch)
        to_next = chunk + 1 < schedule.num_chunks and schedule.crosses(chunk, micro_batch)
        backward = kind in (Kind.B, Kind.I)
        if kind is Kind.F and from_before:
            yield Action(Kind.RECV_F, chunk, micro_batch)
        if backward and to_next:
            yield Action(Kind.RECV_B, chunk, micro_batch)
        yield action
        if kind is Kind.F and to_next:
            yield Action(Kind.SEND_F, chunk, micro_batch)
        if backward and from_before:
            yield Action(Kind.SEND_B, chunk, micro_batch)
