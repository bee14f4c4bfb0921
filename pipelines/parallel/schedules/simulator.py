"""Playing a schedule with given costs: start and end of each action, idle time and memory. Pure.

    simulate(schedule, costs) -> Timeline      or ScheduleStuck, where lists wait for each other

Each worker does its list in order. F waits for the previous chunk's output, B and I for the next chunk's gradient, and REDUCE for
all replicas of its stage. Times follow from these waits alone, so workers are played in any order that makes progress: one pass
over the lists, without a queue of events. Lists with and without transfers give the same times.

Not modelled: messages that share a link's bandwidth, and workers that share a machine's cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sparkring.errors import ScheduleStuck
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.memory import Peak, peak_activations
from sparkring.pipelines.parallel.schedules.program import Program
from sparkring.pipelines.parallel.schedules.schedule import COMPUTE, Action, Kind, Schedule, Worker

_SHOWN = 8
"""Most stuck workers in a message."""

_RECV_F, _RECV_B, _REDUCE = Kind.RECV_F, Kind.RECV_B, Kind.REDUCE


class TimedAction(NamedTuple):
    """An action with its start and end, in seconds from the start of the step. A receive starts when its worker begins to wait."""

    action: Action
    start_s: float
    end_s: float


WorkerTimings = Mapping[Worker, tuple[TimedAction, ...]]
"""Each worker's actions with their times: simulated, or measured by an executor."""


@dataclass(frozen=True)
class Timeline:
    """A played step of a schedule."""

    schedule: Schedule
    costs: Costs
    entries: WorkerTimings

    @cached_property
    def makespan_s(self) -> float:
        """From the start of the step until the last action ends."""
        return max((entries[-1].end_s for entries in self.entries.values() if entries), default=0.0)

    @cached_property
    def compute_s(self) -> float:
        """From the start of the step until the last F, B, I or W ends."""
        return compute_s(self.entries)

    @cached_property
    def bubbles(self) -> Mapping[Worker, float]:
        """Share of ``compute_s`` in which each worker is idle."""
        return idle_shares(self.entries)

    @property
    def bubble(self) -> float:
        """Share of ``compute_s`` in which a worker is idle, mean over all workers."""
        return sum(self.bubbles.values()) / len(self.bubbles)

    @cached_property
    def peaks(self) -> Mapping[Worker, Peak]:
        """The most activations that each worker holds."""
        return {worker: peak_activations(self.schedule, self.costs, worker) for worker in self.entries}


def busy_s(entries: tuple[TimedAction, ...]) -> float:
    """Seconds of F, B, I and W."""
    return sum(entry.end_s - entry.start_s for entry in entries if entry.action.kind in COMPUTE)


def compute_s(entries: WorkerTimings) -> float:
    """Seconds until the last F, B, I or W ends."""
    return max((entry.end_s for done in entries.values() for entry in done if entry.action.kind in COMPUTE), default=0.0)


def idle_shares(entries: WorkerTimings) -> dict[Worker, float]:
    """Share of ``compute_s`` in which each worker is idle; of a simulated or a measured step."""
    all_s = compute_s(entries)
    return {worker: 1 - busy_s(done) / all_s if all_s else 0.0 for worker, done in entries.items()}


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """Play one step.

    Args:
        schedule: A schedule that ``check_schedule`` accepts, with or without transfers.
        costs: Costs of all its chunks and stages.
    Raises:
        ScheduleStuck: lists wait for each other; the message names the workers, their next actions and the awaited ones.
    """
    assert len(costs.forward_s) == schedule.num_chunks, f"costs of {len(costs.forward_s)} chunks, the schedule has {schedule.num_chunks}"
    assert len(costs.hop_forward_s) == len(costs.hop_backward_s) == schedule.num_chunks - 1
    player = _Simulation(schedule, costs)
    player.play()
    return Timeline(schedule, costs, dict(zip(schedule.workers, map(tuple, player.entries), strict=True)))


class _Simulation:
    """Each worker's position in its list, and the arrival of each result."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.program = Program(schedule, costs)
        self.workers, self.replicas = schedule.workers, schedule.replicas
        self.ops = [list(self.program.ops(worker)) for worker in self.workers]
        self.entries: list[list[TimedAction]] = [[] for _ in self.workers]
        self.clocks = [0.0] * len(self.workers)
        self.times = [-1.0] * (4 * self.program.block)
        """Arrival of each result, by number; negative: not yet."""
        self.waiting: dict[int, int] = {}
        """The worker that waits for each number; at most one, since each result has one user."""
        self.at_reduce: list[list[int]] = [[] for _ in self.replicas]

    def play(self) -> None:
        """Advance each worker as far as possible, until all are done."""
        able = list(range(len(self.workers)))
        while able:
            able.extend(self._advance(able.pop()))
        waits = list(self._waits())
        if waits:
            raise ScheduleStuck(self.program.schedule.name, waits[:_SHOWN])

    def _advance(self, worker: int) -> list[int]:
        """Play one worker until it waits; return the workers that can continue because of it."""
        times, waiting, entries, clock = self.times, self.waiting, self.entries[worker], self.clocks[worker]
        woken: list[int] = []
        ops = self.ops[worker]
        for place in range(len(entries), len(ops)):
            action, seconds, need, need_too, makes, brings, delay_s, pause_s = ops[place]
            start = clock
            if need >= 0:
                if times[need] < 0:
                    waiting[need] = worker
                    break
                start = max(start, times[need])
            if need_too >= 0:
                if times[need_too] < 0:
                    waiting[need_too] = worker
                    break
                start = max(start, times[need_too])
            kind = action.kind
            if kind is _REDUCE:
                self.clocks[worker] = clock
                return [*woken, *self._reduce(worker, action, seconds)]
            end = start + seconds
            entries.append(TimedAction(action, clock if kind is _RECV_F or kind is _RECV_B else start, end))
            clock = end + pause_s
            if makes >= 0:
                times[makes] = end
            if brings >= 0:
                times[brings] = end + delay_s
                if brings in waiting:
                    woken.append(waiting.pop(brings))
        self.clocks[worker] = clock
        return woken

    def _reduce(self, worker: int, action: Action, seconds: float) -> list[int]:
        """Wait for the stage's other replicas; the last to arrive lets all continue."""
        stage = self.workers[worker].stage
        arrived = self.at_reduce[stage]
        arrived.append(worker)
        if len(arrived) < self.replicas[stage]:
            return []
        start = max(self.clocks[member] for member in arrived)
        for member in arrived:
            self.entries[member].append(TimedAction(action, start, start + seconds))
            self.clocks[member] = start + seconds
        return arrived

    def _waits(self) -> Iterator[tuple[str, str, str]]:
        """(worker, its next action, the awaited action) of all unfinished workers, and of finished ones that they wait for."""
        schedule = self.program.schedule
        for number, worker in enumerate(self.workers):
            place = len(self.entries[number])
            if place == len(self.ops[number]):
                continue
            op = self.ops[number][place]
            text = schedule.text(op.action)
            if op.action.kind is _REDUCE:
                yield str(worker), text, f"REDUCE of stage {worker.stage}'s other replicas"
                continue
            missing = next(need for need in (op.need, op.need_too) if need >= 0 and self.times[need] < 0)
            awaited, owner = self.program.awaited(missing, worker)
            yield str(worker), text, awaited
            other = self.workers.index(owner)
            if len(self.entries[other]) == len(self.ops[other]):
                yield str(owner), "the end of its list", "nothing"
