"""A schedule drawn with letters, for a terminal: one line a worker, one column a tick. Pure.

    0: F0 F1 .. .. B0 == F2 B1 == .. B2 ==        two stages, three micro-batches, 1F1B
    1: .. F0 B0 == F1 B1 == F2 B2 == .. ..        .. is idle, == continues the action before
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.schedule import COMPUTE, Schedule, Worker
from sparkring.pipelines.parallel.schedules.simulator import TimedAction, WorkerTimings, simulate
from sparkring.pipelines.parallel.schedules.transfers import without_transfers

_ALMOST = 1e-6
"""Share of a tick by which sums of seconds may miss it."""


def draw_schedule(schedule: Schedule, *, backward_ticks: int = 1, width: int | None = None) -> str:
    """The plan alone: F, I and W take a tick each, B takes ``backward_ticks``, a hop takes none.

    With unequal numbers of replicas, a pass of a stage with r replicas takes r times the ticks of a stage with one, so all stages
    keep the same pace.

    Args:
        schedule: With or without transfers; only computation is drawn.
        backward_ticks: Ticks of B, at least 1.
        width: Most letters of a line; longer pictures continue below. None: no limit.
    """
    smallest = math.gcd(*schedule.replicas)
    ticks = [float(schedule.replicas[chunk % schedule.num_stages] // smallest) for chunk in range(schedule.num_chunks)]
    hops = (0.0,) * (len(ticks) - 1)
    costs = Costs(forward_s=ticks, backward_s=[backward_ticks * each for each in ticks], input_s=ticks, weight_s=ticks,
                  hop_forward_s=hops, hop_backward_s=hops)
    return draw_entries(schedule, simulate(without_transfers(schedule), costs).entries, tick_s=1.0, width=width)


def draw_entries(schedule: Schedule, entries: WorkerTimings, *, tick_s: float, width: int | None = None) -> str:
    """Draw planned or measured entries; a tick shows the computation that fills most of it.

    Args:
        schedule: The schedule of these entries.
        entries: Entries of each worker, in order; a worker without any is idle.
        tick_s: Seconds of a column.
        width: As for ``draw_schedule``.
    """
    computed = {worker: [entry for entry in entries.get(worker, ()) if entry.action.kind in COMPUTE] for worker in schedule.workers}
    end_s = max((entry.end_s for worker in computed.values() for entry in worker), default=0.0)
    ticks = round(end_s / tick_s + 0.5 - _ALMOST)
    cells = {worker: _cells(schedule, computed[worker], ticks, tick_s) for worker in schedule.workers}
    broad = max((len(cell) for row in cells.values() for cell in row if cell), default=2)
    labels = {worker: f"{_label(schedule, worker)}:" for worker in schedule.workers}
    margin = max(map(len, labels.values()))
    columns = ticks if width is None else max(1, (width - margin) // (broad + 1))
    blocks = []
    for start in range(0, max(ticks, 1), max(columns, 1)):
        rows = [(labels[worker], cells[worker][start:start + columns]) for worker in schedule.workers]
        blocks.append("\n".join(" ".join([label.ljust(margin), *(_padded(cell, broad) for cell in row)]).rstrip() for label, row in rows))
    return "\n\n".join(blocks)


def _label(schedule: Schedule, worker: Worker) -> str:
    return str(worker.stage) if set(schedule.replicas) == {1} else str(worker)


def _padded(cell: str | None, broad: int) -> str:
    """An idle tick, a continued action, or an action's text."""
    if cell is None:
        return "." * broad
    return cell.ljust(broad) if cell else "=" * broad


def _cells(schedule: Schedule, entries: Sequence[TimedAction], ticks: int, tick_s: float) -> list[str | None]:
    """(ticks,) text of the computation that fills most of each tick; empty if it continues, None if the tick is mostly idle."""
    cells: list[str | None] = []
    shown: TimedAction | None = None
    first = 0
    for tick in range(ticks):
        start_s, end_s = tick * tick_s, (tick + 1) * tick_s
        while first < len(entries) and entries[first].end_s <= start_s:  # they are in order, and do not overlap
            first += 1
        last = first
        while last < len(entries) and entries[last].start_s < end_s:
            last += 1
        shares = [(min(entries[place].end_s, end_s) - max(entries[place].start_s, start_s), -place) for place in range(first, last)]
        share_s, place = max(shares, default=(0.0, 0))
        if share_s < tick_s * (0.5 - _ALMOST):
            cells.append(None)
            continue
        entry = entries[-place]
        cells.append("" if entry is shown else schedule.text(entry.action))
        shown = entry
    return cells
