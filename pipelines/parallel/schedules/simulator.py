"""Playing a schedule with given costs: when each action would start and end, what stays idle, what is held. Pure.

    simulate(schedule, costs) -> Timeline      or ScheduleStuck, if the lists wait for each other

Each worker does its list in order. F waits for the output of the chunk before, B and I for the gradient from the chunk after,
REDUCE for all replicas of its stage. Times follow from these waits alone, so workers are played in any order that makes
progress: one pass over the lists, no queue of events. Lists with and without transfers give the same times.

What is not modelled: messages do not share a link's bandwidth, and workers do not share a machine's cores.
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
"""Most stuck workers that are named."""

_RECV_F, _RECV_B, _REDUCE = Kind.RECV_F, Kind.RECV_B, Kind.REDUCE


class TimedAction(NamedTuple):
    """One action and when it ran, in seconds from the start of the step. A receive that waits starts when its worker gets to it."""

    action: Action
    start_s: float
    end_s: float


WorkerTimings = Mapping[Worker, tuple[TimedAction, ...]]
"""What each worker did and when: simulated, or measured by an executor."""


@dataclass(frozen=True)
class Timeline:
    """A step of a schedule, played."""

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
        """Share of ``compute_s`` in which each worker computes nothing."""
        return idle_shares(self.entries)

    @property
    def bubble(self) -> float:
        """Share of ``compute_s`` in which a worker computes nothing, mean over all workers."""
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
    """Share of ``compute_s`` in which each worker computes nothing; of a step that was simulated, or of one that was measured."""
    all_s = compute_s(entries)
    return {worker: 1 - busy_s(done) / all_s if all_s else 0.0 for worker, done in entries.items()}


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """Play one step.

    Args:
        schedule: Lists that ``check_schedule`` lets pass, with or without transfers.
        costs: Of as many chunks and stages as the schedule has.
    Raises:
        ScheduleStuck: The lists wait for each other; names the workers, their next actions and what these wait for.
    """
    assert len(costs.forward_s) == schedule.num_chunks, f"costs of {len(costs.forward_s)} chunks, the schedule has {schedule.num_chunks}"
    assert len(costs.hop_forward_s) == len(costs.hop_backward_s) == schedule.num_chunks - 1
    player = _Simulation(schedule, costs)
    player.play()
    return Timeline(schedule, costs, dict(zip(schedule.workers, map(tuple, player.entries), strict=True)))


class _Simulation:
    """Who is where in its list, and when everything that was made is there."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.program = Program(schedule, costs)
        self.workers, self.replicas = schedule.workers, schedule.replicas
        self.ops = [list(self.program.ops(worker)) for worker in self.workers]
        self.entries: list[list[TimedAction]] = [[] for _ in self.workers]
        self.clocks = [0.0] * len(self.workers)
        self.times = [-1.0] * (4 * self.program.block)
        """When what a number stands for is there; negative: not yet."""
        self.waiting: dict[int, int] = {}
        """Who waits for a number: at most one, since each result has one user."""
        self.at_reduce: list[list[int]] = [[] for _ in self.replicas]

    def play(self) -> None:
        """Let each worker go on as far as it can, until all are done."""
        able = list(range(len(self.workers)))
        while able:
            able.extend(self._go_on(able.pop()))
        waits = list(self._waits())
        if waits:
            raise ScheduleStuck(self.program.schedule.name, waits[:_SHOWN])

    def _go_on(self, worker: int) -> list[int]:
        """Play one worker until it waits; returns who can go on because of it."""
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
        """Wait for the stage's other replicas; the last to come lets all go on."""
        stage = self.workers[worker].stage
        together = self.at_reduce[stage]
        together.append(worker)
        if len(together) < self.replicas[stage]:
            return []
        start = max(self.clocks[member] for member in together)
        for member in together:
            self.entries[member].append(TimedAction(action, start, start + seconds))
            self.clocks[member] = start + seconds
        return together

    def _waits(self) -> Iterator[tuple[str, str, str]]:
        """(worker, its next action, what that waits for), of all that are not done and of those whom they wait for in vain."""
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
