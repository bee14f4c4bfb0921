"""When a rank saves, and what becomes of it: the loop's side of checkpoints/writer.py.

    wants      rank 0 asks for a checkpoint when steps (checkpoints/pace.py) or seconds are up; all hear it with the step
    after      a checkpoint that was written, or a warning with how many were not; rank 0 waits a little for one that is late
    finish     the last one has to be written: the run ends with it, so it is tried a few times
"""

from __future__ import annotations

import time
from functools import partial

from sparkring.conf.schema import TrainConfig
from sparkring.errors import StorageError
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.keepalive import run_keeping_alive, wait_keeping_alive
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument
from sparkring.pipelines.training.checkpoints.pace import Pace
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.checkpoints.writer import CheckpointWriter, Saved
from sparkring.pipelines.training.events.writer import EventWriter
from sparkring.pipelines.training.strategies.signals import Signals, SignalSource
from sparkring.pipelines.training.strategies.strategy import Strategy

LAST_TRIES = 3
RETRY_S = 1.0
"""Seconds before the second try of the last checkpoint; twice as many before the third."""
PATIENCE_S = 2.0
"""Most seconds, from its beginning, that training waits for a checkpoint, so that no failure costs more steps than were asked for."""


class Saver:
    """One rank's checkpoints."""

    def __init__(self, run_url: str, train: TrainConfig, strategy: Strategy, communicator: Communicator, events: EventWriter,
                 signals: SignalSource) -> None:
        """Save nothing yet."""
        self._run_url, self._every, self._strategy, self._communicator = run_url, train.checkpoint_steps, strategy, communicator
        self._events, self._signals = events, signals
        self._decides = communicator.context.rank == 0
        self._pace, self._done, self._waited_s = Pace(self._every), 0, 0.0
        self._checkpoints = Checkpoints(run_url)
        self._writer = CheckpointWriter(self._checkpoints, communicator, keep=train.keep_checkpoints, settle=events.settle,
                                        steps_done=lambda: self._done)
        self._why = ""
        """The last failure, as far as this rank knows it."""
        self._slow_told = False
        self.failures = 0
        """Checkpoints that were not written."""

    def go_on(self, steps_done: int) -> None:
        """Train on from a checkpoint after so many steps, or from the beginning; what earlier generations commit beyond it is void then.

        All ranks call it: storage may be slow to take rank 0's word.
        """
        fence = partial(self._checkpoints.fence, self._events.generation, steps=steps_done) if self._decides else None
        run_keeping_alive(self._communicator, fence, name="checkpoint.fence")
        self._pace, self._done, self._waited_s = Pace(self._every, start=steps_done), steps_done, 0.0

    @property
    def writing(self) -> bool:
        """What this rank tells the others: it is still busy with the checkpoint before."""
        return self._writer.writing

    def wants(self, steps_done: int) -> bool:
        """What rank 0 tells the others: the steps since the last checkpoint ask for one after so many."""
        return self._decides and self._pace.due(steps_done)

    def due(self, signals: Signals) -> bool:
        """Whether a checkpoint is to be begun after the step that was just done; the same on all ranks, as the signals are."""
        return signals.save > 0 and signals.writing == 0

    def save(self, document: CheckpointDocument) -> None:
        """Begin a checkpoint; training goes on while it is written. All ranks call it at the same step.

        Args:
            document: What it says of itself, without its parts.
        """
        since, self._done = time.perf_counter(), document.position.steps_done
        self.wait()
        self._writer.begin(self._strategy.part(), document.model_copy(update={"generation": self._events.generation}), since=since)
        self._hear()
        self._pace.begun(self._done)
        self._signals.saved()

    def after(self, steps_done: int) -> None:
        """Note, after a step, what has become of checkpoints begun earlier.

        Where another step would be one too many to lose, rank 0 waits for the one that is being written, and the others for rank 0.
        """
        self._done = steps_done
        if self._decides and self._writer.writing and self._pace.holds(steps_done):
            self._waited_s += self._writer.hold(PATIENCE_S)
        self._hear()

    def _hear(self) -> None:
        for saved in self._writer.heard():
            self.failures += bool(saved.failure)
            self._why = saved.failure
            if self._decides:
                self._note(saved)

    def _note(self, saved: Saved) -> None:
        """In the events, and for the pace of those to come."""
        position, waited_s = saved.document.position, self._waited_s
        self._waited_s = 0.0
        if saved.failure:
            self._pace.failed()
            self._events.write("warning", what="checkpoint", count=self.failures, text=(
                f"the checkpoint after {position.steps_done} steps was not written, the one before stays ({self.failures} so far): "
                f"{saved.failure}"))
            return
        self._pace.committed(position.steps_done, steps=saved.steps, held=waited_s > 0)
        self._events.write("checkpoint", epoch=position.epoch, step=position.step, seconds=round(saved.held_up_s + waited_s, 6),
                           write_s=round(saved.seconds, 6), bytes=saved.bytes, name=saved.name)
        if saved.untidy:
            self._events.write("warning", text=f"old checkpoints could not be deleted: {saved.untidy}")
        if self._pace.cost > self._every and saved.seconds > PATIENCE_S and not self._slow_told:
            self._slow_told = True
            self._events.write("warning", text=(
                f"a checkpoint takes {saved.seconds:.1f} s to write, in which {saved.steps} steps are done: a failure may cost "
                f"{self._pace.cost} steps, not {self._every}; set train.checkpoint_steps to more than {2 * saved.steps}, or have faster "
                "storage."))

    def abandon(self) -> None:
        """Wait for the checkpoint that is being written, whatever becomes of it: the run goes back to one that is."""
        self.wait()
        self._hear()
        self._writer.failed = False

    def wait(self) -> None:
        """Until nothing is being written on any rank, however long that takes; all ranks call it."""
        wait_keeping_alive(self._communicator, self._writer.ended, name="checkpoint.wait")
        self._writer.finish()

    def finish(self) -> None:
        """Wait for the last checkpoint, by which the run ends or goes on another time.

        Raises:
            StorageError: it could not be written, on all ranks.
        """
        for number in range(1, LAST_TRIES + 1):
            self.wait()
            self._hear()
            if self._communicator.agree(mine=not self._writer.failed, name="checkpoint.last"):
                return
            if number < LAST_TRIES:
                time.sleep(RETRY_S * number)
                self._writer.again()
        raise StorageError(f"the last checkpoint could not be written to {self._run_url} in {LAST_TRIES} tries: "
                           f"{self._why or 'rank 0 could not commit it'}; make room there or mend the storage, and run the same command "
                           "again: it goes on from the checkpoint before.")
