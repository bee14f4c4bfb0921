"""Which rank holds the others up, and with what: judged at each checkpoint, from what the ranks tell each other there anyway.

    rank   data  compute  communication     seconds of a step, over the steps since the last checkpoint
    0      0.01     0.10           0.21
    1      0.01     0.30           0.01     <- never waits, since all wait for it: slow in computing
    2      0.01     0.11           0.20

In a step that all ranks end together, one that is late waits for nobody: its own time, data and compute, is long, and its wait short.
Where all of them wait long and nobody is late, the sum itself takes the time: the network between the ranks, or their memory. Which link
of a ring is slow cannot be told from this, as all ranks wait alike.

Ranks are compared with those that do the same work, the replicas of a stage. Pure: seconds in, words out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any, Literal, TypeAlias

Cause: TypeAlias = Literal["data", "compute", "network"]
Seconds: TypeAlias = tuple[float, float, float]
"""Of a step: data, compute, communication."""
Groups: TypeAlias = Sequence[Sequence[int]]
"""Ranks that do the same work."""

LATE = 1.5
"""A rank is late whose own time is so many times the others'."""
WORTH = 0.2
"""And whose excess is this share of a step: less is not worth a word."""
ALL_WAIT = 0.5
"""Share of a step that every rank has to wait for the network to be blamed."""
LEAST_S = 0.005
"""And in seconds a step."""
FEWEST_STEPS = 5
"""Fewer say nothing: the first ones warm up."""
_FOUR = struct.Struct("<4d")
PACKED = _FOUR.size
"""Bytes that ``pack`` gives."""


@dataclass(frozen=True, kw_only=True)
class Slow:
    """One rank that is late, or the network between all of them; the values of a ``slow`` event."""

    slow_rank: int
    """-1 for the network."""
    cause: Cause
    step_s: float
    """Seconds of a step, on it."""
    own_s: float
    """Of those, what it does not wait for others; of the network, what each rank waits at least."""
    others_s: float
    """The same of the ranks like it, in the middle; of the network, what ranks do beside waiting."""
    over: bool = False
    """It was so before and is not any more."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Slow:
        """From a ``slow`` event."""
        return cls(**{part.name: record[part.name] for part in fields(cls)})

    def text(self, host: str = "") -> str:
        """For people."""
        if self.cause == "network":
            return (f"all ranks wait {self.own_s:.3f} s of a step of {self.step_s:.3f} s, and none is late: the network or the memory "
                    "between them holds them up; larger batches or fewer ranks wait less")
        what = "waits for its rows" if self.cause == "data" else "computes"
        return (f"rank {self.slow_rank}{f' on {host}' if host else ''} holds the others up: it {what} longer, {self.own_s:.3f} s a step in "
                f"place of their {self.others_s:.3f} s; see what else runs there, or leave that machine out")


class StepSeconds:
    """Adds up one rank's seconds between two checkpoints, but for its worst step: one bad step makes no slow rank."""

    def __init__(self) -> None:
        self._steps: list[Seconds] = []

    def add(self, data_s: float, compute_s: float, comm_s: float) -> None:
        """Take one step."""
        self._steps.append((data_s, compute_s, comm_s))

    def take(self) -> tuple[float, float, float, float]:
        """(steps, data, compute, communication) added up since they were told last: what a rank tells the others.

        As long as there are too few, none: they are told with those to come.
        """
        if len(self._steps) <= FEWEST_STEPS:
            return 0.0, 0.0, 0.0, 0.0
        kept = sorted(self._steps, key=lambda step: step[0] + step[1])[:-1]
        self._steps = []
        data, compute, comm = (sum(step[place] for step in kept) for place in range(3))
        return float(len(kept)), data, compute, comm


class SlowRanks:
    """Remembers who was slow, so that each change is told once."""

    def __init__(self, groups: Groups) -> None:
        """``groups``: ranks that do the same work; those alone in theirs are not judged."""
        self._groups = groups
        self._slow: dict[tuple[int, Cause], Slow] = {}

    def judge(self, told: Sequence[Sequence[float]]) -> list[Slow]:
        """What is new.

        Args:
            told: By rank, what its ``StepSeconds.take`` gave.
        Returns:
            Those that have become slow, and those that have caught up.
        """
        if min((entry[0] for entry in told), default=0.0) < FEWEST_STEPS:
            return []
        seconds = [(entry[1] / entry[0], entry[2] / entry[0], entry[3] / entry[0]) for entry in told]
        now = {(one.slow_rank, one.cause): one for one in find_slow(seconds, self._groups)}
        news = [one for key, one in now.items() if key not in self._slow]
        news += [replace(one, over=True) for key, one in self._slow.items() if key not in now]
        self._slow = now
        return news


def pack(taken: Sequence[float]) -> bytes:
    """What ``StepSeconds.take`` gave, for the way to the other ranks."""
    return _FOUR.pack(*taken)


def unpack(data: bytes) -> tuple[float, ...]:
    """The inverse of ``pack``."""
    return _FOUR.unpack(data)


def find_slow(seconds: Sequence[Seconds], groups: Groups) -> list[Slow]:
    """The ranks that are late, or the network, or nobody.

    Args:
        seconds: Of a step, by rank.
        groups: Ranks that do the same work.
    """
    late = [one for group in groups for rank in group if (one := _late(rank, group, seconds))]
    waits, steps = [comm for _, _, comm in seconds], [sum(each) for each in seconds]
    least = min(waits)
    if not late and len(seconds) > 1 and len(groups) == 1 and least > max(LEAST_S, ALL_WAIT * max(steps)):  # stages wait for each other
        late = [Slow(slow_rank=-1, cause="network", step_s=max(steps), own_s=least, others_s=max(steps) - least)]
    return late


def _late(rank: int, group: Sequence[int], seconds: Sequence[Seconds]) -> Slow | None:
    others = [seconds[other] for other in group if other != rank]
    if not others:
        return None
    data, compute, comm = seconds[rank]
    usual_data, usual_compute = (median(each[place] for each in others) for place in (0, 1))
    own, usual = data + compute, median(other[0] + other[1] for other in others)
    step = own + comm
    if own <= LATE * usual or own - usual <= max(LEAST_S, WORTH * step):
        return None
    cause: Cause = "data" if data - usual_data > compute - usual_compute else "compute"
    return Slow(slow_rank=rank, cause=cause, step_s=step, own_s=own, others_s=usual)

