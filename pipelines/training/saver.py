"""When a rank saves, and what becomes of it: the loop's side of checkpoint_writer.py.

    due        every so many steps, every so many seconds, when asked to stop; put off while storage still has the one before
    hear       a checkpoint that was written, or a warning with how many were not
    finish     the last one has to be written: the run ends with it, so it is tried a few times
"""

from __future__ import annotations

import time

from sparkring.conf.schema import TrainConfig
from sparkring.errors import StorageError
from sparkring.pipelines.parallel.communicator import Communicator
from sparkring.pipelines.training.checkpoint import CheckpointDocument, Checkpoints
from sparkring.pipelines.training.checkpoint_writer import CheckpointWriter
from sparkring.pipelines.training.events import EventWriter
from sparkring.pipelines.training.signals import Signals, SignalSource
from sparkring.pipelines.training.trainee import Trainee

LAST_TRIES = 3
RETRY_S = 1.0
"""Seconds before the second try of the last checkpoint; twice as many before the third."""


class Saver:
    """One rank's checkpoints."""

    def __init__(self, run_url: str, train: TrainConfig, trainee: Trainee, communicator: Communicator, events: EventWriter,
                 signals: SignalSource) -> None:
        """Save nothing yet."""
        self._run_url, self._every, self._trainee, self._communicator = run_url, train.checkpoint_steps, trainee, communicator
        self._events, self._signals = events, signals
        self._writer = CheckpointWriter(Checkpoints(run_url), communicator, keep=train.keep_checkpoints, settle=events.settle)
        self._put_off = False
        self._why = ""
        """The last failure, as far as this rank knows it."""
        self.failures = 0
        """Checkpoints that were not written."""

    @property
    def lags(self) -> bool:
        """What this rank tells the others: its part of the checkpoint before is still being written."""
        return self._writer.lags

    def due(self, steps_done: int, signals: Signals) -> bool:
        """Whether a checkpoint is due after the step that was just done; the same on all ranks, since all have the same signals."""
        wanted = self._put_off or signals.save > 0 or steps_done % self._every == 0
        self._put_off = wanted and signals.writing > 0
        return wanted and not self._put_off

    def save(self, document: CheckpointDocument) -> None:
        """Begin a checkpoint; training goes on while it is written. All ranks call it at the same step.

        Args:
            document: What it says of itself, without its parts.
        """
        self._put_off = False
        self._writer.begin(self._trainee.part(), document)
        self._signals.saved()

    def hear(self) -> None:
        """Note what has become of checkpoints begun earlier."""
        for saved in self._writer.heard():
            position = saved.document.position
            self.failures += bool(saved.failure)
            self._why = saved.failure
            if self._communicator.context.rank != 0:
                continue
            if saved.failure:
                self._events.write("warning", what="checkpoint", count=self.failures, text=(
                    f"the checkpoint after {position.steps_done} steps was not written, the one before stays ({self.failures} so far): "
                    f"{saved.failure}"))
                continue
            self._events.write("checkpoint", epoch=position.epoch, step=position.step, seconds=round(saved.held_up_s, 6),
                               write_s=round(saved.seconds, 6), bytes=saved.bytes, name=saved.name)
            if saved.untidy:
                self._events.write("warning", text=f"old checkpoints could not be deleted: {saved.untidy}")

    def abandon(self) -> None:
        """Wait for the checkpoint that is being written, whatever becomes of it: the run goes back to one that is."""
        self._writer.finish()
        self.hear()
        self._writer.failed = self._put_off = False

    def finish(self) -> None:
        """Wait for the last checkpoint, by which the run ends or goes on another time.

        Raises:
            StorageError: it could not be written, on all ranks.
        """
        for number in range(1, LAST_TRIES + 1):
            self._writer.finish()
            self.hear()
            if self._communicator.agree(mine=not self._writer.failed, name="checkpoint.last"):
                return
            if number < LAST_TRIES:
                time.sleep(RETRY_S * number)
                self._writer.again()
        raise StorageError(f"the last checkpoint could not be written to {self._run_url} in {LAST_TRIES} tries: "
                           f"{self._why or 'rank 0 could not commit it'}; make room there or mend the storage, and run the same command "
                           "again: it goes on from the checkpoint before.")
