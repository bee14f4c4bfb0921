"""The rules that every schedule must obey: each micro-batch's work is done exactly once, in order, by its owner.

Whether the lists make progress together is another question, which ``simulate`` answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sparkring.errors import ScheduleInvalid, in_one_line
from sparkring.pipelines.parallel.schedules.schedule import CLOSING, TRANSFERS, Action, Kind, Schedule, Worker
from sparkring.pipelines.parallel.schedules.transfers import with_transfers, without_transfers


def check_schedule(schedule: Schedule) -> Schedule:
    """Return the schedule if it obeys all rules.

    For each chunk and micro-batch, its owner and no other worker does F once, then B once, or I once and W once after it. If
    there are transfers, each action that needs one has its receive before it or its send after it, and there are no others.
    REDUCE and STEP come last, once each.

    Raises:
        ScheduleInvalid: it breaks a rule; the message names the first few mistakes.
    """
    findings = list(_findings(schedule))
    if findings:
        raise ScheduleInvalid(f"schedule {schedule.name} is invalid: {in_one_line(findings)}; "
                              "correct the lists, or use those of a generator.")
    return schedule


def _findings(schedule: Schedule) -> Iterator[str]:
    if schedule.num_chunks % schedule.num_stages:
        yield f"{schedule.num_chunks} chunks do not divide among {schedule.num_stages} stages"
        return
    if set(schedule.actions) != set(schedule.workers):
        yield f"it has lists for workers {_names(schedule.actions)}, expected {_names(schedule.workers)}"
        return
    for worker, actions in schedule.actions.items():
        counts = Counter(actions)
        yield from (f"{worker} does {schedule.text(action)} {count} times" for action, count in counts.items() if count > 1)
        yield from _foreign(schedule, worker, counts)
        yield from _out_of_order(schedule, worker, {action: place for place, action in enumerate(actions)})
    if schedule.has_transfers or any(action.kind in CLOSING for actions in schedule.actions.values() for action in actions):
        yield from _transfer_findings(schedule)


def _foreign(schedule: Schedule, worker: Worker, counts: Counter[Action]) -> Iterator[str]:
    for action in counts:
        if action.kind in CLOSING:
            if action != Action(action.kind):
                yield f"{worker} has a {action.kind} of a chunk or micro-batch; it has neither"
            continue
        known = 0 <= action.chunk < schedule.num_chunks and 0 <= action.micro_batch < schedule.micro_batches
        if not known:
            yield f"{worker} does {action.text()}, but there are {schedule.num_chunks} chunks and {schedule.micro_batches} micro-batches"
        elif schedule.owner(action.chunk, action.micro_batch) != worker:
            yield f"{worker} does {schedule.text(action)}, which is {schedule.owner(action.chunk, action.micro_batch)}'s"


def _out_of_order(schedule: Schedule, worker: Worker, places: dict[Action, int]) -> Iterator[str]:
    """F before B, or before I before W, for all that the worker owns."""
    for chunk in range(worker.stage, schedule.num_chunks, schedule.num_stages):
        for micro_batch in range(worker.replica, schedule.micro_batches, schedule.replicas[worker.stage]):
            f, b, i, w = (places.get(Action(kind, chunk, micro_batch)) for kind in (Kind.F, Kind.B, Kind.I, Kind.W))
            halves = [place for place in (i, w) if place is not None]
            what = f"micro-batch {micro_batch} of chunk {chunk}"
            if f is None:
                yield f"{worker} lacks F of {what}"
            elif b is not None and halves:
                yield f"{worker} does both B and I or W of {what}"
            elif b is None and len(halves) < 2:
                yield f"{worker} lacks {'B' if not halves else 'W' if w is None else 'I'} of {what}"
            elif [f, *([b] if b is not None else halves)] != sorted([f, *([b] if b is not None else halves)]):
                yield f"{worker} does {what} out of order; F comes first, then B, or I and then W"


def _transfer_findings(schedule: Schedule) -> Iterator[str]:
    """Compare the transfers with those that ``with_transfers`` makes: the same ones, each on the right side of its computation."""
    right = with_transfers(without_transfers(schedule))
    for worker, actions in schedule.actions.items():
        if tuple(actions[-2:]) != tuple(map(Action, CLOSING)):
            yield f"{worker} does not end in REDUCE and STEP"
        wanted = {action for action in right.actions[worker] if action.kind in TRANSFERS}
        found = {action for action in actions if action.kind in TRANSFERS}
        yield from (f"{worker} lacks {schedule.text(action)}" for action in sorted(wanted - found))
        yield from (f"{worker} has {schedule.text(action)}, which no action needs" for action in sorted(found - wanted))
        places = {action: place for place, action in enumerate(actions)}
        yield from (f"{worker} has {schedule.text(action)} on the wrong side of its computation"
                    for action in sorted(wanted & found) if not _well_placed(action, places))


def _well_placed(action: Action, places: dict[Action, int]) -> bool:
    forward = action.kind in (Kind.SEND_F, Kind.RECV_F)
    kinds = (Kind.F,) if forward else (Kind.B, Kind.I)
    computed = [places[done] for kind in kinds if (done := Action(kind, action.chunk, action.micro_batch)) in places]
    if not computed:
        return True  # reported elsewhere
    return (places[action] < computed[0]) == (action.kind in (Kind.RECV_F, Kind.RECV_B))


def _names(workers: Iterable[Worker]) -> str:
    return ", ".join(map(str, sorted(workers)))
