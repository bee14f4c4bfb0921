"""A measured step as records of an event stream, one per worker, and read back as one timeline. Pure.

    {"schedule": "1f1b", "replicas": [1, 1], "num_chunks": 2, "micro_batches": 4, "worker": [1, 0], "began": 1767225600.251,
     "actions": "RECV_F0/1 F0/1 B0/1 SEND_B0/1 ...", "start_us": [0, 912, ...], "end_us": [911, 1850, ...]}

``began`` is wall-clock time. It aligns the records of several hosts as well as their clocks agree.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkring.errors import ScheduleInvalid
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.schedule import Kind, Schedule, Worker, all_workers, parse_action
from sparkring.pipelines.parallel.schedules.simulator import TimedAction, WorkerTimings

_MICROSECONDS = 1e6

StepRecord = Mapping[str, Any]


def step_record(schedule: Schedule, worker: Worker, entries: Sequence[TimedAction], *, clock_s: float) -> dict[str, Any]:
    """One worker's step as plain values.

    Args:
        schedule: The schedule that the worker followed.
        worker: The worker.
        entries: Its actions in order, timed by any clock.
        clock_s: Offset from that clock to seconds since 1970.
    """
    began = entries[0].start_s if entries else 0.0
    return {"schedule": schedule.name, "replicas": list(schedule.replicas), "num_chunks": schedule.num_chunks,
            "micro_batches": schedule.micro_batches, "worker": list(worker), "began": round(began + clock_s, 6),
            "actions": " ".join(entry.action.text() for entry in entries),
            "start_us": [round((entry.start_s - began) * _MICROSECONDS) for entry in entries],
            "end_us": [round((entry.end_s - began) * _MICROSECONDS) for entry in entries]}


def timeline_of(records: Iterable[StepRecord]) -> tuple[Schedule, WorkerTimings]:
    """The schedule that all workers followed, and their actions, timed from the moment that the first worker began.

    Args:
        records: The records of one step, one per worker, in any order.
    Raises:
        ScheduleInvalid: a worker has no record or several, or workers followed different schedules.
    """
    listed = list(records)
    by_worker = {Worker(*record["worker"]): record for record in listed}
    if not by_worker:
        raise ScheduleInvalid("there is no record of any worker; a step of stages leaves one each.")
    shapes = {(record["schedule"], tuple(record["replicas"]), record["num_chunks"], record["micro_batches"])
              for record in listed}
    name, replicas, num_chunks, micro_batches = shapes.pop()
    if shapes or sorted(by_worker) != list(all_workers(replicas)) or len(listed) > len(by_worker):
        raise ScheduleInvalid(f"records of workers {', '.join(map(str, sorted(by_worker)))} are no step of schedule {name} over stages "
                              f"with {list(replicas)} replicas; all workers of one step are needed.")
    origin = min(record["began"] for record in by_worker.values())
    entries = {worker: _entries(record, record["began"] - origin) for worker, record in sorted(by_worker.items())}
    actions = {worker: tuple(entry.action for entry in done) for worker, done in entries.items()}
    return Schedule(name, replicas=replicas, num_chunks=num_chunks, micro_batches=micro_batches, actions=actions), entries


def _entries(record: StepRecord, late_s: float) -> tuple[TimedAction, ...]:
    times = zip(record["actions"].split(), record["start_us"], record["end_us"], strict=True)
    return tuple(TimedAction(parse_action(text), late_s + start / _MICROSECONDS, late_s + end / _MICROSECONDS)
                 for text, start, end in times)


def costs_seen(schedule: Schedule, entries: WorkerTimings) -> Costs:
    """The costs in a measured step: medians, so that a single delay does not count.

    Messages count as taking no time, and a sum as long as it took the last replica to arrive, which waited for nobody.
    """
    spent: dict[tuple[Kind, int], list[float]] = {}
    for worker, done in entries.items():
        for action, start_s, end_s in done:
            of_stage = action.kind in (Kind.REDUCE, Kind.STEP)
            spent.setdefault((action.kind, worker.stage if of_stage else action.chunk), []).append(end_s - start_s)

    def by_chunk(kind: Kind) -> tuple[float, ...]:
        return tuple(statistics.median(spent.get((kind, chunk), [0.0])) for chunk in range(schedule.num_chunks))

    stages = range(schedule.num_stages)
    hops = (0.0,) * (schedule.num_chunks - 1)
    return Costs(forward_s=by_chunk(Kind.F), backward_s=by_chunk(Kind.B), input_s=by_chunk(Kind.I), weight_s=by_chunk(Kind.W),
                 hop_forward_s=hops, hop_backward_s=hops,
                 reduce_s=tuple(min(spent.get((Kind.REDUCE, stage), [0.0])) for stage in stages),
                 step_s=tuple(statistics.median(spent.get((Kind.STEP, stage), [0.0])) for stage in stages))
