"""The loop: from the last checkpoint, or the seed, to a trained model.

    start     all ranks restore rank 0's last checkpoint, or start alike, from given weights or the seed; and prove that they are equal
    step      exact gradient, update, one event; a checkpoint beside training if one is due
    epoch     every row came exactly once (proved by digest), held-out metrics, checkpoint
    end       after the last epoch, or earlier (early_stopping.py): the epoch with the best held-out metric becomes the run's model

When any rank is asked to stop, all of them save after the same step and end; a later generation resumes there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

import torch

from sparkring.pipelines.parallel.collectives.keepalive import run_keeping_alive
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, Position
from sparkring.pipelines.training.evaluation.evaluate import evaluate
from sparkring.pipelines.training.evaluation.interruptible import Interrupted, Interruptible
from sparkring.pipelines.training.evaluation.score import score_of
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.pipelines.training.loop.advance import Steps
from sparkring.pipelines.training.loop.dealt_steps import DealtSteps
from sparkring.pipelines.training.loop.early_stopping import has_stopped, is_done, judge, metric_of
from sparkring.pipelines.training.loop.finish import finish_run
from sparkring.pipelines.training.loop.given import start_from_given
from sparkring.pipelines.training.loop.lock_step import LockStep, Watchers
from sparkring.pipelines.training.loop.positions import after_evaluation, at_epoch_end, require_exact
from sparkring.pipelines.training.loop.restore import restore
from sparkring.pipelines.training.loop.saver import Saver
from sparkring.pipelines.training.loop.setup import RankSetup
from sparkring.pipelines.training.strategies.relaxed.stale_sync import StaleSyncStrategy
from sparkring.pipelines.training.strategies.replica import Replica
from sparkring.pipelines.training.strategies.state import pack
from sparkring.version import __version__


class TrainingLoop:
    """One rank's part of one generation of a run."""

    def __init__(self, setup: RankSetup) -> None:
        """Prepare all parts of the loop; train nothing yet."""
        self._setup, self._strategy = setup, setup.strategy
        self._saver = Saver(setup)
        self._watchers = watchers = Watchers(setup, self._saver)
        self._records, self._proof, self._exchange = watchers.records, watchers.proof, watchers.exchange
        self._nonfinite, self._plan = watchers.nonfinite, watchers.plan
        self._stopping = False
        """Whether some rank was asked to stop; all ranks learn it with the same step."""

    def run(self) -> TrainSummary | None:
        """Train to the end; rank 0 returns the summary."""
        began, train = time.perf_counter(), self._setup.config.train
        position = start = self._start()
        self._records.start(position)
        while not self._stopping and not is_done(position, train):
            position = self._evaluate_epoch(position) if position.to_evaluate else self._train_epoch(position)
        self._saver.finish()
        self._strategy.close()
        finish = partial(finish_run, self._setup, position, resumed_at=start.steps_done,
                         failed_checkpoints=self._saver.failures) if self._setup.is_first else None
        summary = run_keeping_alive(self._setup.communicator, finish, name="finish")
        self._setup.events.write("end", seconds=round(time.perf_counter() - began, 3))
        return summary

    def _start(self) -> Position:
        """Put all ranks into the state of the last checkpoint, or of a fresh run."""
        restored = restore(self._setup)
        if restored is None:
            start_from_given(self._setup)
        if restored is None and isinstance(self._strategy, Replica):  # the seed gives all ranks the same; this makes sure
            fresh = self._setup.communicator.broadcast_bytes(pack(self._strategy.model.state_dict()), name="start.fresh")
            self._strategy.take_weights([fresh])  # the optimizer's state stays: rank 0's may be of a part of the weights
        position = restored or Position()
        self._strategy.require_equal()
        self._saver.resume(position.steps_done)
        if restored is None and self._nonfinite.needs_checkpoint:
            self._save(position)
        return position

    def _train_epoch(self, position: Position) -> Position:
        """Train from ``position`` to the end of its epoch and evaluate it.

        Returns:
            The first position of the next epoch. If ranks stop or roll back earlier, the position to resume at.
        """
        seconds = _stopwatch(position.seconds)
        self._proof.begin_epoch()
        self._records.begin_epoch(position)
        with closing(self._steps(position)) as steps:
            while position.step < self._setup.steps_per_epoch:
                position, due, self._stopping = steps.advance(position)
                if self._nonfinite.wants_rollback:
                    return self._roll_back(position)
                if due and position.step < self._setup.steps_per_epoch:
                    position = self._exchange.complete(position.model_copy(update={"seconds": seconds()}))
                    self._save(position)
                    if self._stopping:
                        return position
                self._saver.after(position.steps_done)
        position = self._exchange.complete(position)
        require_exact(position, self._setup.manifest)
        self._plan.epoch_ends()
        return self._evaluate_epoch(at_epoch_end(position, seconds=seconds()))

    def _evaluate_epoch(self, position: Position) -> Position:
        """Evaluate the epoch before ``position`` and save a checkpoint.

        Returns:
            The first position of the next epoch. If ranks are asked to stop meanwhile, ``position``: the next generation
            evaluates first.
        """
        setup, seconds = self._setup, _stopwatch(position.seconds)
        batches = Interruptible(setup.validation_loader, setup.communicator, lambda: setup.signals.now().stop > 0)
        try:
            validation = evaluate(self._strategy.predict(batches), setup.communicator, setup.manifest, setup.config.train)
        except Interrupted:
            self._stopping = True
            self._save(position)
            return position
        following, train = after_evaluation(position), setup.config.train
        self._records.epoch(position, validation, seconds=seconds())
        if train.early_stopping is not None:
            following = judge(following, validation, config=train.early_stopping, communicator=setup.communicator)
            if has_stopped(following, train):
                self._records.stopped_early(following)
        self._save(following, validation)
        return following

    def _steps(self, position: Position) -> Steps:
        """The rest of an epoch, as the strategy does it."""
        if isinstance(self._strategy, StaleSyncStrategy):
            return DealtSteps(self._setup, self._strategy, self._watchers, position)
        return LockStep(self._setup, self._strategy, self._watchers, position)

    def _roll_back(self, position: Position) -> Position:
        """Put all ranks back into the state of the last checkpoint; their events continue as a new generation.

        Args:
            position: The position after the step that was not finite.
        Raises:
            NotFinite: there is no checkpoint, or the run has gone back to it often enough.
        """
        self._saver.abandon()
        restored = restore(self._setup)
        text = self._nonfinite.roll_back(position, restored)
        assert restored is not None
        self._strategy.require_equal()
        self._setup.events.write("rollback", epoch=position.epoch, step=position.step - 1, steps_done=restored.steps_done,
                                 text=text)
        self._setup.events.next_generation()
        self._saver.resume(restored.steps_done)
        self._records.start(restored)
        self._proof.restart()
        return restored

    def _save(self, position: Position, validation: dict[str, float] | None = None) -> None:
        """Begin a checkpoint; all ranks call this after the same step."""
        setup, train = self._setup, self._setup.config.train
        self._saver.save(CheckpointDocument(
            position=position, validation=validation, score=score_of(validation, metric_of(train)) if validation else None,
            content_id=setup.manifest.content_id,
            dataset_version=setup.manifest.version, seed=train.seed, lanes=setup.job.lanes, batch_rows=train.step_rows,
            code_version=__version__, torch_version=torch.__version__,
            config=setup.config.model_dump(mode="json", include={"model", "train"}), lr=setup.learning_rate(position.steps_done),
            layout=str(setup.layout or f"{setup.communicator.context.size} ranks, each with the whole model")))


def _stopwatch(seconds: float) -> Callable[[], float]:
    """A clock that starts now at ``seconds``."""
    began = time.perf_counter()
    return lambda: seconds + time.perf_counter() - began
