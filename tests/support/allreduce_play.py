"""All ranks of an allreduce in one process: their rounds played as messages that need both ends at once, or over real connections."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations

import torch
from torch import Tensor

from sparkring.pipelines.parallel.allreduce.between import Awaited
from sparkring.pipelines.parallel.allreduce.error_feedback import ErrorFeedback
from sparkring.pipelines.parallel.allreduce.exchange import Exchange
from sparkring.pipelines.parallel.allreduce.rounds import Round, Rounds
from tests.support.tcp import connected_pair


def play(schedules: Sequence[Rounds], values: Sequence[Tensor]) -> list[Tensor]:
    """The ranks' buffers after all rounds.

    Raises:
        AssertionError: some ranks wait for each other for ever, or two ends expect different messages.
    """
    buffers, at = [each.clone() for each in values], [0] * len(values)
    sent, received = [False] * len(values), [False] * len(values)

    def now(place: int) -> Round | None:
        return schedules[place][at[place]] if at[place] < len(schedules[place]) else None

    while any(now(place) for place in range(len(values))):
        moved, before = False, [each.clone() for each in buffers]
        for place in range(len(values)):
            mine = now(place)
            if mine is None or mine.to is None or sent[place]:
                continue
            theirs = now(mine.to)
            if theirs is None or theirs.source != place or received[mine.to]:
                continue
            assert mine.adds == theirs.adds, f"{place} to {mine.to}: {mine} {theirs}"
            assert mine.sent[1] - mine.sent[0] == theirs.received[1] - theirs.received[0]
            _take(buffers[mine.to], theirs, before[place][mine.sent.first:mine.sent.last])
            sent[place], received[mine.to], moved = True, True, True
        for place in range(len(values)):
            mine = now(place)
            if mine is not None and (sent[place] or mine.to is None) and (received[place] or mine.source is None):
                at[place], sent[place], received[place], moved = at[place] + 1, False, False, True
        assert moved, f"ranks wait for each other: {[now(place) for place in range(len(values))]}"
    return buffers


def _take(buffer: Tensor, each: Round, values: Tensor) -> None:
    target = buffer[each.received.first:each.received.last]
    target.copy_(target + values if each.adds else values)


def ramp(place: int, length: int) -> Tensor:
    """Values of one rank, whose sums depend on their order in the last bit."""
    return torch.sin(torch.arange(length, dtype=torch.float64) * (place + 1) + place)


@contextmanager
def exchanges(count: int, *, buffer_bytes: int | None = None) -> Iterator[list[Exchange]]:
    """Those of ``count`` ranks, each connected with all others."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(count)]
    for one, other in combinations(range(count), 2):
        ends[one][other], ends[other][one] = connected_pair(buffer_bytes=buffer_bytes)
    try:
        yield [Exchange(mine, {place: Awaited(f"rank {place}", (place,)) for place in mine}) for mine in ends]
    finally:
        for end in (each for mine in ends for each in mine.values()):
            end.close()


def exchange_all(ranks: Sequence[Exchange], schedules: Sequence[Rounds], values: Sequence[Tensor],
                 feedback: Sequence[ErrorFeedback | None] = ()) -> list[Tensor]:
    """The ranks' buffers after all rounds over real connections, a thread a rank."""
    buffers = [each.clone() for each in values]
    until = time.monotonic() + 20
    with ThreadPoolExecutor(len(ranks)) as pool:
        for done in [pool.submit(rank.play, mine, buffer, until=until, feedback=kept) for rank, mine, buffer, kept in zip(
                ranks, schedules, buffers, feedback or [None] * len(ranks), strict=True)]:
            done.result()
    return buffers
