"""Steps that are dealt: each is done by whichever rank is free, from one quiet point to the next.

    segment       ranks take steps, learn, and write their events; nobody waits for the others but for the bound
    quiet point   all updates are applied; ranks add up what they did, and the run has a position again

A segment ends at the epoch's end, or when a rank asks for a checkpoint or to stop: no further steps are given out then. It has at least one
step: a checkpoint at its beginning would replace the one that is there, and forget what that one knows of the epoch before.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch

from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.loop.advance import Advance
from sparkring.pipelines.training.loop.lock_step import Watchers
from sparkring.pipelines.training.loop.setup import RankSetup
from sparkring.pipelines.training.strategies.relaxed.stale_sync import StaleSyncStrategy
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.step import Spoiled


class Done(NamedTuple):
    """What one rank did in a segment."""

    steps: float = 0.0
    rows: float = 0.0
    loss: float = 0.0
    """Sum over its rows, by their weights."""
    weight: float = 0.0
    spoiled: float = 0.0
    """Steps that were not finite."""
    first_spoiled: float = math.inf
    """The first of them."""
    stop: float = 0.0
    save: float = 0.0
    writing: float = 0.0


class DealtSteps:
    """One rank's part in the rest of an epoch."""

    def __init__(self, setup: RankSetup, strategy: StaleSyncStrategy, watchers: Watchers, position: Position) -> None:
        """Begin to read the rows of ``position`` and what follows, on ranks that compute."""
        self._setup, self._strategy, self._watchers = setup, strategy, watchers
        self._reading = ExitStack()
        self._take = self._reading.enter_context(setup.train_loader.taking(position.epoch, first_step=position.step)) if (
            strategy.works) else None
        self._votes = dict[int, Sequence[float]]()
        """On the dealer: the last votes of each worker."""
        self._saves = False
        """On the dealer: whether the segment ends for a checkpoint."""

    def advance(self, position: Position) -> Advance:
        """Take part in one segment; returns the quiet point at its end."""
        setup, watchers = self._setup, self._watchers
        self._votes, self._saves = {}, False
        mine, stalenesses = Done(), Counter[int]()
        with self._strategy.segment(position.step, setup.steps_per_epoch, ends=partial(self._ends, position),
                                    stops=lambda: setup.signals.now().stop > 0):
            for step in self._strategy.taken(self._now):
                mine = self._do(position, step, mine, stalenesses)
        stop, writing = self._now()
        mine = mine._replace(stop=stop, save=self._saves, writing=writing)
        all_done = [Done(*row) for row in setup.communicator.gather(torch.tensor([mine], dtype=torch.float64), name="quiet").tolist()]
        following = _after(position, all_done)
        setup.events.write("quiet", epoch=position.epoch, step=following.step, steps=int(mine.steps),
                           staleness={str(one): count for one, count in sorted(stalenesses.items())})
        watchers.proof.seal()
        if spoiled := int(sum(done.spoiled for done in all_done)):
            watchers.nonfinite.handle_late(position.epoch, Spoiled(int(min(done.first_spoiled for done in all_done)), spoiled))
        stopping = any(done.stop for done in all_done)
        due = watchers.saver.due(Signals(save=sum(done.save for done in all_done), writing=sum(done.writing for done in all_done)))
        return Advance(following, due or stopping, stopping)

    def close(self) -> None:
        """See Steps."""
        self._reading.close()

    def _do(self, position: Position, step: int, mine: Done, stalenesses: Counter[int]) -> Done:
        """Learn from one step, and write its event; returns what this rank has done so far."""
        setup, watchers = self._setup, self._watchers
        assert self._take is not None, "ranks that only serve take no steps"
        here = position.model_copy(update={"step": step, "steps_done": position.steps_done + step - position.step})
        began, rate = time.perf_counter(), setup.learning_rate(here.steps_done)
        batch = self._take(step)
        data_s = time.perf_counter() - began
        result, staleness = self._strategy.learn(batch, rate)
        stalenesses[staleness] += 1
        watchers.records.step(here, batch, result, watchers.proof.add_step(here, batch), rate=rate, data_s=data_s, staleness=staleness)
        done = mine._replace(steps=mine.steps + 1, rows=mine.rows + batch.global_rows)
        if not result.updated:
            return done._replace(spoiled=done.spoiled + 1, first_spoiled=min(done.first_spoiled, step))
        return done._replace(loss=done.loss + result.loss * result.weight, weight=done.weight + result.weight)

    def _now(self) -> tuple[float, float]:
        """This rank's votes: to stop, and that it still writes the last checkpoint."""
        return self._setup.signals.now().stop, float(self._watchers.saver.writing)

    def _ends(self, position: Position, worker: int, votes: Sequence[float], given_out: int) -> bool:
        """On the dealer: whether to give out no more steps, now that a worker has voted."""
        self._votes[worker] = votes
        done = position.steps_done + given_out - position.step
        self._watchers.saver.count(done)
        due = self._setup.signals.now(due=self._watchers.saver.wants(done)).save > 0
        self._saves = self._saves or (due and not any(writing for _, writing in self._votes.values()))
        return given_out > position.step and (self._saves or any(stop for stop, _ in self._votes.values()))


def _after(position: Position, all_done: Sequence[Done]) -> Position:
    """The position after a segment."""
    steps = int(sum(done.steps for done in all_done))
    return position.model_copy(update={
        "step": position.step + steps, "steps_done": position.steps_done + steps,
        "rows": position.rows + int(sum(done.rows for done in all_done)),
        "loss_sum": position.loss_sum + sum(done.loss for done in all_done),
        "weight": position.weight + sum(done.weight for done in all_done)})
