"""Steps that all ranks do together, each with its share of the rows."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing

from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.events.plan_watch import PlanWatch
from sparkring.pipelines.training.loop.advance import Advance
from sparkring.pipelines.training.loop.epoch_proof import EpochProof
from sparkring.pipelines.training.loop.exchange import PositionExchange
from sparkring.pipelines.training.loop.nonfinite import LEFT_OUT, NonFiniteSteps
from sparkring.pipelines.training.loop.positions import after_step
from sparkring.pipelines.training.loop.records import LoopRecords
from sparkring.pipelines.training.loop.saver import Saver
from sparkring.pipelines.training.loop.setup import RankSetup
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.step import StepResult
from sparkring.pipelines.training.strategies.strategy import Strategy


class Watchers:
    """What each step is told to."""

    def __init__(self, setup: RankSetup, saver: Saver) -> None:
        self.saver = saver
        self.records, self.proof = LoopRecords(setup), EpochProof(setup)
        self.exchange = PositionExchange(setup, self.proof)
        self.nonfinite = NonFiniteSteps(setup)
        self.plan = PlanWatch(setup.job.predicted_s if setup.is_first else None, setup.events.write)


class LockStep:
    """One rank's steps of an epoch, one at a time."""

    def __init__(self, setup: RankSetup, strategy: Strategy, watchers: Watchers, position: Position) -> None:
        """Begin to read the rows of ``position`` and what follows."""
        self._setup, self._strategy, self._watchers = setup, strategy, watchers
        self._batches = self._timed(position)

    def advance(self, position: Position) -> Advance:
        """Do one optimizer step and write its event."""
        batch, data_s = next(self._batches)
        rate, watchers = self._setup.learning_rate(position.steps_done), self._watchers
        left_out = watchers.nonfinite.leaves_out(position.steps_done)
        result = LEFT_OUT if left_out else self._strategy.step(batch, rate, self._votes(position))
        stopping = result.signals.stop > 0
        self._record(position, batch, result, rate=rate, data_s=data_s)
        if not result.updated and not left_out:
            watchers.nonfinite.handle(position, result)
        if result.spoiled is not None:
            watchers.nonfinite.handle_late(position.epoch, result.spoiled)
        return Advance(after_step(position, batch, result), watchers.saver.due(result.signals) or stopping, stopping)

    def close(self) -> None:
        """See Steps."""
        self._batches.close()

    def _record(self, position: Position, batch: Batch, result: StepResult, *, rate: float, data_s: float) -> None:
        """Write a step's events and count its seconds."""
        watchers = self._watchers
        proof, cost = watchers.proof.add_step(position, batch), result.cost
        if result is not LEFT_OUT:
            watchers.records.timeline(position)  # before the step's record, whose hash goes into the receipts
        watchers.records.step(position, batch, result, proof, rate=rate, data_s=data_s)
        watchers.proof.seal()
        watchers.plan.step(data_s + cost.compute_s + cost.comm_s)
        watchers.exchange.add_step(data_s, cost.compute_s, cost.comm_s)

    def _votes(self, position: Position) -> Signals:
        """This rank's signals to the others in the step at ``position``."""
        saver = self._watchers.saver
        return self._setup.signals.now(due=saver.wants(position.steps_done + 1), writing=saver.writing)

    def _timed(self, position: Position) -> Generator[tuple[Batch, float]]:
        """The rest of the epoch, each batch with the seconds that this rank waited for it; closing it ends the reader threads."""
        waiting = time.perf_counter()
        with closing(self._setup.train_loader.epoch(position.epoch, first_step=position.step)) as batches:
            for batch in batches:
                yield batch, time.perf_counter() - waiting
                waiting = time.perf_counter()
