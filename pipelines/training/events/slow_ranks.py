"""Finds the rank that slows the others down, and the cause, from figures that the ranks exchange at checkpoints anyway.

    rank   data  compute  communication     seconds of a step, over the last seconds of training
    0      0.01     0.10           0.21
    1      0.01     0.30           0.01     <- never waits, since all wait for it: slow in computing
    2      0.01     0.11           0.20

All ranks end a step together. A late rank waits for no other: its own time (data and compute) is long and its wait is short. If all
ranks wait long and none is late, the sum itself takes the time: the network between the ranks, or their memory. All ranks of a ring wait
alike, so these figures do not show which link is slow.

A rank is compared with the ranks that do the same work: the replicas of its stage. Pure: seconds in, findings out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any, Literal, TypeAlias

Cause: TypeAlias = Literal["data", "compute", "network"]
Seconds: TypeAlias = tuple[float, float, float]
"""(data, compute, communication) of one step."""
Report: TypeAlias = tuple[float, ...]
"""(steps, data, compute, communication) of one rank, added up."""
Groups: TypeAlias = Sequence[Sequence[int]]
"""Ranks that do the same work."""

LATE = 1.5
"""A rank is late if its own time is at least this many times the others'."""
WORTH = 0.2
"""The excess of a late rank is at least this share of a step; less is not worth reporting."""
ALL_WAIT = 0.5
"""The network is blamed if every rank waits for at least this share of a step."""
LEAST_S = 0.005
"""Neither is reported for fewer seconds a step than this."""
FEWEST_STEPS = 5
"""Fewer steps show nothing: the first ones warm up."""
OBSERVED_S = 5.0
"""Seconds of training behind every report: over shorter times, other work on a busy machine makes any rank look slow."""
_FOUR = struct.Struct("<4d")
PACKED = _FOUR.size
"""Bytes that ``pack`` gives."""


@dataclass(frozen=True, kw_only=True)
class Slow:
    """One late rank, or the network between all ranks; the values of a ``slow`` event."""

    slow_rank: int
    """-1 for the network."""
    cause: Cause
    step_s: float
    """Seconds of a step on this rank."""
    own_s: float
    """Seconds of data and compute in a step; for the network, the least that any rank waits."""
    others_s: float
    """Median of ``own_s`` over the other ranks of its group; for the network, the seconds in which ranks do not wait."""
    over: bool = False
    """The rank was slow before and is not any more."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Slow:
        """Read a ``slow`` event."""
        return cls(**{part.name: record[part.name] for part in fields(cls)})

    def text(self, host: str = "") -> str:
        """One sentence for the console and the report."""
        if self.cause == "network":
            return (f"all ranks wait {self.own_s:.3f} s of a step of {self.step_s:.3f} s, and none is late: the network or the memory "
                    "between them is slow; larger batches or fewer ranks wait less")
        what = "waits for its rows" if self.cause == "data" else "computes"
        return (f"rank {self.slow_rank}{f' on {host}' if host else ''} slows the others down: it {what} longer, {self.own_s:.3f} s a step "
                f"against their {self.others_s:.3f} s; look for other work on its host, or exclude that host")


class StepSeconds:
    """Adds up one rank's seconds between two checkpoints without its worst step: one bad step makes no slow rank."""

    def __init__(self) -> None:
        self._steps: list[Seconds] = []

    def add(self, data_s: float, compute_s: float, comm_s: float) -> None:
        """Take one step."""
        self._steps.append((data_s, compute_s, comm_s))

    def take(self) -> tuple[float, float, float, float]:
        """(steps, data, compute, communication) since the last call, added up: what this rank sends to the others.

        All are 0 while the steps are too few; these steps then count in the next call.
        """
        if len(self._steps) <= FEWEST_STEPS:
            return 0.0, 0.0, 0.0, 0.0
        kept = sorted(self._steps, key=lambda step: step[0] + step[1])[:-1]
        self._steps = []
        data, compute, comm = (sum(step[place] for step in kept) for place in range(3))
        return float(len(kept)), data, compute, comm


class SlowRanks:
    """Adds up the ranks' reports, and remembers which slow ranks it has named: one that other work slows now and then is named once."""

    def __init__(self, groups: Groups) -> None:
        """``groups``: ranks that do the same work. A rank alone in its group is compared with none."""
        self._groups = groups
        self._named: set[tuple[int, Cause]] = set()
        self._slow: dict[tuple[int, Cause], Slow] = {}
        """Those named that have not caught up yet."""
        self._reports: list[Report] = []

    def update(self, reports: Sequence[Sequence[float]]) -> list[Slow]:
        """Add the ranks' reports of one checkpoint.

        Args:
            reports: By rank, the result of its ``StepSeconds.take``.
        Returns:
            Ranks that have become slow and ranks that have caught up, each once for a cause; nothing before ``OBSERVED_S`` seconds of
            training are behind it.
        """
        if min((report[0] for report in reports), default=0.0) < FEWEST_STEPS:
            return []
        added = self._reports or [(0.0, 0.0, 0.0, 0.0)] * len(reports)
        self._reports = [tuple(map(sum, zip(*pair, strict=True))) for pair in zip(added, reports, strict=True)]
        if max(sum(report[1:]) for report in self._reports) < OBSERVED_S:
            return []
        seconds = [(data / steps, compute / steps, comm / steps) for steps, data, compute, comm in self._reports]
        self._reports = []
        return self._changes({(one.slow_rank, one.cause): one for one in find_slow(seconds, self._groups)})

    def _changes(self, now: dict[tuple[int, Cause], Slow]) -> list[Slow]:
        new = {key: one for key, one in now.items() if key not in self._named}
        over = [replace(one, over=True) for key, one in self._slow.items() if key not in now]
        self._slow = {key: one for key, one in self._slow.items() if key in now} | new
        self._named |= new.keys()
        return [*new.values(), *over]


def pack(taken: Sequence[float]) -> bytes:
    """A rank's report as bytes, to send to the other ranks."""
    return _FOUR.pack(*taken)


def unpack(data: bytes) -> tuple[float, ...]:
    """The inverse of ``pack``."""
    return _FOUR.unpack(data)


def find_slow(seconds: Sequence[Seconds], groups: Groups) -> list[Slow]:
    """The late ranks, or the network, or none.

    Args:
        seconds: Seconds of one step, by rank.
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

