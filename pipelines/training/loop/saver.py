"""When a rank saves a checkpoint, and what it reports: the loop's side of checkpoints/writer.py.

    wants      rank 0 asks for a checkpoint when enough steps (checkpoints/pace.py) or seconds have passed; all learn it with the step
    after      reports a checkpoint that was written, or warns of one that was not; rank 0 waits a little for one that is late
    finish     the last checkpoint must be written, since the run ends with it: it is tried a few times

A later generation may have begun, e.g. where another driver resumed the run while this ring was cut off from its own. Then no checkpoint of
this one will ever count, and whichever of these calls rank 0 hears it in raises Superseded, which ends the ring.
"""

from __future__ import annotations

import time
from functools import partial

from sparkring.errors import StorageError
from sparkring.pipelines.parallel.collectives.keepalive import run_keeping_alive, wait_keeping_alive
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument
from sparkring.pipelines.training.checkpoints.pace import Pace
from sparkring.pipelines.training.checkpoints.writer import CheckpointWriter, Saved
from sparkring.pipelines.training.loop.setup import RankSetup
from sparkring.pipelines.training.strategies.signals import Signals

LAST_TRIES = 3
RETRY_S = 1.0
"""Seconds before the second try of the last checkpoint; twice as many before the third."""
PATIENCE_S = 2.0
"""Seconds after a checkpoint's beginning for which training may wait for it, so that a failure costs no more steps than configured."""


class Saver:
    """One rank's checkpoints."""

    def __init__(self, setup: RankSetup) -> None:
        """Save nothing yet."""
        train = setup.config.train
        self._run_url, self._every, self._checkpoints = setup.job.run_url, train.checkpoint_steps, setup.checkpoints
        self._strategy, self._communicator = setup.strategy, setup.communicator
        self._events, self._signals = setup.events, setup.signals
        self._decides = setup.is_first
        self._pace, self._done, self._waited_s = Pace(self._every), 0, 0.0
        self._writer = CheckpointWriter(setup.checkpoints, setup.communicator, keep=train.keep_checkpoints,
                                        settle=setup.events.settle, steps_done=lambda: self._done)
        self._last_failure = ""
        """The last failure, as far as this rank knows it."""
        self._warned_slow = False
        self.failures = 0
        """Checkpoints that were not written."""

    def resume(self, steps_done: int) -> None:
        """Start from a checkpoint after so many steps, or from the beginning; later checkpoints of earlier generations become void.

        All ranks call it: storage may be slow to take rank 0's fence.
        """
        fence = partial(self._checkpoints.fence, self._events.generation, steps=steps_done) if self._decides else None
        run_keeping_alive(self._communicator, fence, name="checkpoint.fence")
        self._pace, self._done, self._waited_s = Pace(self._every, start=steps_done), steps_done, 0.0

    @property
    def writing(self) -> bool:
        """Whether this rank still writes the last checkpoint; the others learn it with the step."""
        return self._writer.writing

    def wants(self, steps_done: int) -> bool:
        """Whether rank 0 asks for a checkpoint after ``steps_done`` steps; the others learn it with the step."""
        return self._decides and self._pace.due(steps_done)

    def due(self, signals: Signals) -> bool:
        """Whether to begin a checkpoint after the step just done; all ranks agree, since they share the signals."""
        return signals.save > 0 and signals.writing == 0

    def save(self, document: CheckpointDocument) -> None:
        """Begin a checkpoint; training continues while it is written. All ranks call it after the same step.

        Args:
            document: The checkpoint's document, without its parts.
        """
        since, self._done = time.perf_counter(), document.position.steps_done
        self.wait()
        self._writer.begin(self._strategy.part(), document.model_copy(update={"generation": self._events.generation}), since=since)
        self._report_ended()
        self._pace.begun(self._done)
        self._signals.saved()

    def after(self, steps_done: int) -> None:
        """Report, after a step, the checkpoints that have ended; ``count`` comes first."""
        self.count(steps_done)
        self._report_ended()

    def count(self, steps_done: int) -> None:
        """Note the steps that are done, or were given out.

        If a failure after another step would cost too many steps, rank 0 first waits for the checkpoint that is being written; the others
        wait for rank 0 in the next step. Steps are given out in another thread; the loop's calls nothing here meanwhile but ``writing``.
        """
        self._done = steps_done
        if self._decides and self._writer.writing and self._pace.holds(steps_done):
            self._waited_s += self._writer.hold(PATIENCE_S)

    def _report_ended(self) -> None:
        for saved in self._writer.heard():
            self.failures += bool(saved.failure)
            self._last_failure = saved.failure
            if self._decides:
                self._report(saved)
            if saved.superseded is not None:
                raise saved.superseded

    def _report(self, saved: Saved) -> None:
        """Write the event of an ended checkpoint, and adjust the pace."""
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
        if self._pace.cost > self._every and saved.seconds > PATIENCE_S and not self._warned_slow:
            self._warned_slow = True
            self._events.write("warning", text=(
                f"a checkpoint takes {saved.seconds:.1f} s to write, in which {saved.steps} steps are done: a failure may cost "
                f"{self._pace.cost} steps, not {self._every}; set train.checkpoint_steps to more than {2 * saved.steps}, or use faster "
                "storage."))

    def abandon(self) -> None:
        """Wait for the checkpoint that is being written, whether it succeeds or not: the run goes back to the last that did."""
        self.wait()
        self._report_ended()
        self._writer.failed = False

    def wait(self) -> None:
        """Wait until no rank is writing, however long that takes; all ranks call it."""
        wait_keeping_alive(self._communicator, self._writer.ended, name="checkpoint.wait")
        self._writer.finish()

    def finish(self) -> None:
        """Wait for the last checkpoint, from which the run ends or is resumed later.

        Raises:
            StorageError: it could not be written, on all ranks.
            Superseded: a later generation has begun; on rank 0.
        """
        for number in range(1, LAST_TRIES + 1):
            self.wait()
            self._report_ended()
            if self._communicator.agree(mine=not self._writer.failed, name="checkpoint.last"):
                return
            if number < LAST_TRIES:
                time.sleep(RETRY_S * number)
                self._writer.again()
        raise StorageError(f"the last checkpoint could not be written to {self._run_url} in {LAST_TRIES} tries: "
                           f"{self._last_failure or 'rank 0 could not commit it'}; free space or repair the storage, and run the same "
                           "command again: it resumes from the checkpoint before.")
