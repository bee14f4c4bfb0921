"""Schedules as CSV, to read and edit; timelines as traces for Perfetto and chrome://tracing. Text in, text out.

    schedule,1f1b,micro_batches=3,num_chunks=2
    0.0,F0,SEND_F0,F1,SEND_F1,RECV_B0,B0,...        a row per worker (stage.replica), a cell per action
    1.0,RECV_F0,F0,B0,SEND_B0,...
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkring.errors import ScheduleInvalid
from sparkring.pipelines.parallel.schedules.rules import check_schedule
from sparkring.pipelines.parallel.schedules.schedule import CLOSING, COMPUTE, Action, Schedule, Worker, parse_action
from sparkring.pipelines.parallel.schedules.simulator import TimedAction, WorkerTimings

_WORKER = re.compile(r"(\d+)\.(\d+)")
_HEADER = re.compile(r"schedule,([^,]*),micro_batches=(\d+),num_chunks=(\d+)")
_MICROSECONDS = 1e6


def schedule_to_csv(schedule: Schedule) -> str:
    """The schedule as CSV text, one row per worker."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("schedule", schedule.name, f"micro_batches={schedule.micro_batches}", f"num_chunks={schedule.num_chunks}"))
    for worker in schedule.workers:
        writer.writerow((worker, *map(schedule.text, schedule.actions[worker])))
    return text.getvalue()


def schedule_from_csv(text: str) -> Schedule:
    """Read a schedule as ``schedule_to_csv`` writes it, perhaps edited by hand.

    Raises:
        ScheduleInvalid: a header, worker or action cannot be read (the message names row and cell), or the lists are no schedule.
    """
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text))]
    header = _HEADER.fullmatch(",".join(cell for cell in rows[0] if cell)) if rows else None
    if header is None:
        raise ScheduleInvalid(f"the first row is {','.join(rows[0]) if rows else 'missing'!r}; it should read "
                              "schedule,NAME,micro_batches=NUMBER,num_chunks=NUMBER.")
    lists: dict[Worker, tuple[Action, ...]] = {}
    for number, row in enumerate(rows[1:], start=2):
        if any(row):
            worker, actions = _row(row, number, workers=sum(any(cells) for cells in rows[1:]), num_chunks=int(header.group(3)))
            if worker in lists:
                raise ScheduleInvalid(f"row {number}: worker {worker} has a row already; give each worker one row.")
            lists[worker] = actions
    stages = max((worker.stage for worker in lists), default=-1) + 1
    replicas = tuple(sum(worker.stage == stage for worker in lists) for stage in range(stages))
    if not lists or not all(replicas):
        raise ScheduleInvalid(f"the rows name {len(lists)} workers of stages with {list(replicas)} replicas; "
                              "give each stage at least one row.")
    return check_schedule(Schedule(header.group(1), replicas=replicas, num_chunks=int(header.group(3)), micro_batches=int(header.group(2)),
                                   actions={worker: lists[worker] for worker in sorted(lists)}))


def _row(row: Sequence[str], number: int, *, workers: int, num_chunks: int) -> tuple[Worker, tuple[Action, ...]]:
    named = _WORKER.fullmatch(row[0])
    if named is None or max(int(named.group(1)), int(named.group(2))) >= workers:
        raise ScheduleInvalid(f"row {number} begins with {row[0]!r}; it should name one of the {workers} workers by stage and replica, "
                              "from 0.0 on.")
    worker = Worker(int(named.group(1)), int(named.group(2)))
    actions = []
    for column, cell in enumerate(row[1:], start=2):
        if not cell:
            continue
        try:
            actions.append(parse_action(cell, own_chunk=worker.stage if worker.stage < num_chunks else None))
        except ScheduleInvalid as error:
            raise ScheduleInvalid(f"row {number}, cell {column}: {error}") from None
    return worker, tuple(actions)


def trace_json(tracks: Mapping[str, WorkerTimings]) -> str:
    """Timelines as one trace: a process per timeline, a thread per worker, a slice per action.

    Args:
        tracks: Each timeline by the name to show, e.g. ``{"plan": timeline.entries, "measured": records}``.
    Source: the Trace Event Format (complete events ``X``, metadata ``M``), as Perfetto reads it.
    """
    events: list[dict[str, Any]] = []
    for process, (name, entries) in enumerate(tracks.items()):
        events.append(_label("process_name", process, 0, name=name))
        events.append(_label("process_sort_index", process, 0, sort_index=process))
        for thread, worker in enumerate(sorted(entries)):
            events.append(_label("thread_name", process, thread, name=f"stage {worker.stage} replica {worker.replica}"))
            events.append(_label("thread_sort_index", process, thread, sort_index=thread))
            events.extend(_slice(entry, process, thread) for entry in entries[worker])
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, indent=None, separators=(",", ":"))


def _label(what: str, process: int, thread: int, **args: object) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _slice(entry: TimedAction, process: int, thread: int) -> dict[str, Any]:
    action = entry.action
    kind = "compute" if action.kind in COMPUTE else "close" if action.kind in CLOSING else "transfer"
    args = {} if action.kind in CLOSING else {"micro_batch": action.micro_batch, "chunk": action.chunk}
    return {"ph": "X", "name": action.text(), "cat": kind, "pid": process, "tid": thread, "ts": round(entry.start_s * _MICROSECONDS, 3),
            "dur": round((entry.end_s - entry.start_s) * _MICROSECONDS, 3), "args": args}
