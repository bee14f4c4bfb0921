"""Lists for stages with unequal replicas, by list scheduling: the step is simulated, and each worker's actions become its list.

A free worker takes the first possible of: a backward pass (B or I), a forward pass within its limit, and W. Such lists make
progress at any other costs too, since every result was made before its use.

A forward pass of a wide stage is long, and a backward pass that arrives meanwhile waits for it. One or two micro-batches beyond
Little's law make up for that; they are added only where they shorten the step.
Source: Graham 1969, "Bounds on Multiprocessing Timing Anomalies" (list scheduling).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.in_flight import in_flight_limits
from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Worker, all_workers

MOST_EXTRA = 2
"""Micro-batches that a worker may hold beyond Little's law."""
WORTH = 1.02
"""Factor by which another micro-batch in flight must shorten the step to be worth its memory."""

Lists = dict[Worker, tuple[Action, ...]]


def list_scheduled(replicas: Sequence[int], micro_batches: int, *, split: bool, costs: Costs | None = None) -> Lists:
    """The lists of a nearly shortest step with few micro-batches in flight.

    Args:
        replicas: Replicas of each stage.
        micro_batches: Micro-batches of the step, over all replicas.
        split: Whether backward passes are split into two halves.
        costs: Durations; default: F, I and W are equally long, and stages equally fast.
    """
    limits = in_flight_limits(replicas, costs)
    plays = []
    for extra in range(MOST_EXTRA + 1):
        play = _ListScheduler(replicas, micro_batches, costs or Costs.balanced(replicas), split=split,
                              limits=[limit + extra for limit in limits])
        plays.append((play.run(), play.lists()))
    best_s = min(seconds for seconds, _ in plays)
    return next(lists for seconds, lists in plays if seconds <= WORTH * best_s)


class _Event(NamedTuple):
    """An event at a worker: ``kind`` of a micro-batch ends, or the input that ``kind`` needs arrives."""

    when_s: float
    worker: int
    kind: Kind
    micro_batch: int
    arrives: bool


class _SimulatedWorker:
    """One worker: its past actions, and the actions that are possible."""

    def __init__(self, worker: Worker, own: Sequence[int], *, limit: int, held_limit: int, split: bool) -> None:
        self.stage, self.own, self.split = worker.stage, own, split
        self.limit, self.held_limit = limit, held_limit
        self.forwards = self.backwards = self.weights = 0
        self.inputs: set[int] = set(own) if worker.stage == 0 else set()
        self.gradients: set[int] = set()
        self.busy = False
        self.actions: list[Action] = []

    def choose(self) -> Kind | None:
        """Take the first possible action of B or I, F, and W; return its kind, or None."""
        held = self.forwards - (self.weights if self.split else self.backwards)
        room = self.forwards - self.backwards < self.limit and held < self.held_limit
        if self.backwards < self.forwards and self.own[self.backwards] in self.gradients:
            self.backwards += 1
            return self._take(Kind.I if self.split else Kind.B, self.backwards)
        if room and self.forwards < len(self.own) and self.own[self.forwards] in self.inputs:
            self.forwards += 1
            return self._take(Kind.F, self.forwards)
        if self.split and self.weights < self.backwards:
            self.weights += 1
            return self._take(Kind.W, self.weights)
        return None

    def _take(self, kind: Kind, count: int) -> Kind:
        self.actions.append(Action(kind, self.stage, self.own[count - 1]))
        self.busy = True
        return kind


class _ListScheduler:
    """Simulates a step, event by event."""

    def __init__(self, replicas: Sequence[int], micro_batches: int, costs: Costs, *, limits: Sequence[int], split: bool) -> None:
        self.replicas, self.costs = replicas, costs
        self.workers = all_workers(replicas)
        self.first = [sum(replicas[:stage]) for stage in range(len(replicas))]
        self.seconds: Mapping[Kind, Sequence[float]] = {
            Kind.F: costs.forward_s, Kind.B: costs.backward_s, Kind.I: costs.input_s, Kind.W: costs.weight_s}
        self.players = [_SimulatedWorker(worker, range(worker.replica, micro_batches, replicas[worker.stage]), limit=limits[worker.stage],
                                held_limit=-(-limits[0] * replicas[0] // replicas[worker.stage]), split=split) for worker in self.workers]
        self.events: list[_Event] = []

    def lists(self) -> Lists:
        """Each worker's actions."""
        return {worker: tuple(player.actions) for worker, player in zip(self.workers, self.players, strict=True)}

    def run(self) -> float:
        """Simulate the step; return its seconds."""
        now_s, woken = 0.0, set(range(len(self.players)))
        while True:
            for worker in sorted(woken):
                self._act(worker, now_s)
            if not self.events:
                return now_s
            now_s, woken = self.events[0].when_s, set()
            while self.events and self.events[0].when_s == now_s:  # workers choose only after all events of the same time
                event = heapq.heappop(self.events)
                self._happen(event)
                woken.add(event.worker)

    def _act(self, worker: int, now_s: float) -> None:
        player = self.players[worker]
        kind = None if player.busy else player.choose()
        if kind is not None:
            heapq.heappush(self.events, _Event(now_s + self.seconds[kind][player.stage], worker, kind, player.actions[-1].micro_batch,
                                               arrives=False))

    def _happen(self, event: _Event) -> None:
        player, stage = self.players[event.worker], self.players[event.worker].stage
        forward = event.kind is Kind.F
        if event.arrives:
            (player.inputs if forward else player.gradients).add(event.micro_batch)
            return
        player.busy = False
        if forward and stage + 1 == len(self.replicas):
            player.gradients.add(event.micro_batch)
        elif forward:
            self._send(event, stage + 1, self.costs.hop_forward_s[stage])
        elif event.kind is not Kind.W and stage > 0:
            self._send(event, stage - 1, self.costs.hop_backward_s[stage - 1])

    def _send(self, event: _Event, stage: int, hop_s: float) -> None:
        receiver = self.first[stage] + event.micro_batch % self.replicas[stage]
        heapq.heappush(self.events, _Event(event.when_s + hop_s, receiver, event.kind, event.micro_batch, arrives=True))
