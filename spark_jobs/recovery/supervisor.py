"""A run from its first generation to its end: a failure is named, and the run restarts from the last checkpoint on the ranks available.

    generation 0   4 ranks  ---- checkpoint ---- checkpoint --x  rank 2 died
    generation 1   3 ranks       3 slots are left         +-------- checkpoint --|  asked to stop: there are 4 slots again
    generation 2   4 ranks                                                   +-------| done

A generation is also asked to stop when an executor is being decommissioned: the ranks save, and the next generation uses the rest.

All ranks of a generation end together. The run folder alone holds the state of a run, so the same command resumes it after any death.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sparkring.conf.schema import Config, TrainConfig
from sparkring.errors import (
    CheckpointDamaged,
    CommitConflict,
    ConfigError,
    DatasetError,
    DeadlinePassed,
    EnvironmentProblem,
    ExecutorLost,
    HostsLeftOut,
    NotEnoughSlots,
    NotFinite,
    RankDied,
    RankFailed,
    RingError,
    SparkEnded,
    SparkringError,
    Stopped,
    StorageError,
    class_names,
)
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.spark_jobs.recovery.budget import Failure, HostRecord, RestartBudget
from sparkring.spark_jobs.recovery.ring import Ring
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.recovery.width import Widths
from sparkring.spark_jobs.spark.progress import Progress

FINAL = (ConfigError, DatasetError, CheckpointDamaged, CommitConflict, NotFinite)
"""Errors on a rank, with their subclasses, that only people can fix."""
_FINAL_NAMES = class_names(*FINAL)
_STORAGE_NAMES = class_names(StorageError)
"""Raised again at the same step with the same words while storage is unreachable; not a bug."""


class Supervisor:
    """Runs the generations of one run until it is done."""

    def __init__(self, config: Config, ring: Ring, *, works: Callable[[TrainConfig], bool], stop: StopRequest, progress: Progress) -> None:
        """Prepare; starts nothing.

        Args:
            config: The user's config.
            ring: Runs the generations.
            works: Whether the model fits a layout.
            stop: Asks the run to end early.
            progress: Gets a note for every failure and restart.
        """
        self._config, self._ring, self._stop, self._progress = config, ring, stop, progress
        self._widths = Widths(config, ring, works=works, stop=stop, progress=progress)
        recovery = config.train.recovery
        self._budget = RestartBudget(recovery.restarts)
        self._hosts = HostRecord(recovery.leave_out_after)
        self._last_committed, self._first = -1, True

    def run(self) -> TrainSummary:
        """Run generations until one is done.

        Raises:
            Stopped: the run was asked to stop, and is saved.
            RingError, EnvironmentProblem, OSError: the last generation's failure, if another one would not help.
        """
        failed = False
        while True:
            try:
                width = self._widths.choose(failed=failed, begun=self._begun)
                self._stop.require_none()
                with self._widths.watched(width):
                    summary = self._ring.run(self._config.changed(train=width.train), self._hosts.left_out, stop=self._stop)
            except HostsLeftOut as found:
                if not self._widths.does_without(found):
                    self._take_back_hosts(found)
                failed = self._first = False
                continue
            except (RingError, EnvironmentProblem, OSError) as error:  # OSError: storage
                failed = not self._widths.accepts_fewer(error, begun=self._begun)
                if failed:
                    self._count(error)
                self._first = False
                continue
            failed = self._first = False
            if not summary.interrupted:
                return summary
            if self._stop.asked:  # otherwise the number of slots has changed
                raise Stopped(f"stopped as asked ({self._stop.reason}) after {summary.steps} steps, which are saved; "
                              "the same command resumes from there.", signal_number=self._stop.signal_number)

    def _count(self, error: RingError | EnvironmentProblem | OSError) -> None:
        """Note a failure; raise it if the run must not be restarted."""
        if self._refused(error) or isinstance(error, SparkEnded) or self._stop.asked or not self._config.train.recovery.restarts:
            raise error
        failure = self._describe(error)
        objection = self._budget.objection(failure, committed=self._committed())
        if objection:
            error.add_note(f"Not restarted: {objection}.")
            raise error
        self._widths.require_spark()  # before a restart is announced
        limit = self._config.train.recovery.restarts
        self._progress.note(f"training: {failure.summary}; restarting from the last checkpoint (restart {self._budget.used} of {limit})")
        if self._hosts.failed(failure.host):
            self._progress.note(f"training: {failure.host} failed {self._config.train.recovery.leave_out_after} times in a row; "
                                "continuing without it")

    def _refused(self, error: Exception) -> bool:
        """Whether this command's first launch was refused: nothing broke. A run with a checkpoint can do with fewer slots."""
        if isinstance(error, NotEnoughSlots):
            can_shrink = self._config.train.recovery.shrink and self._committed() >= 0 and not self._ring.grows_on_demand()
            return self._first and not can_shrink
        return self._first and not isinstance(error, RingError)

    def _take_back_hosts(self, found: HostsLeftOut) -> None:
        self._hosts.forgive()
        self._progress.note(f"training: hosts that did not fail have {found.slots} slots, too few to continue; all hosts may get "
                            "ranks again")

    def _begun(self) -> bool:
        """Whether the run has had a launch before or, as a resumed run, a checkpoint."""
        return not self._first or self._committed() >= 0

    def _committed(self) -> int:
        """Steps of the latest checkpoint; the last known number while storage is unreachable."""
        with suppress(OSError):
            self._last_committed = self._ring.committed()
        return self._last_committed

    def _steps_of(self, rank: int) -> int:
        with suppress(OSError):
            return self._ring.steps_of(rank)
        return -1

    def _describe(self, error: Exception) -> Failure:
        summary = error.found if isinstance(error, SparkringError) else str(error).partition("\n")[0]  # what to do is done here
        if isinstance(error, RankFailed):
            kind = error.summary.partition(":")[0]
            is_storage = kind in _STORAGE_NAMES
            return Failure(summary, exception="" if is_storage else error.summary, step=self._steps_of(error.rank),
                           final=kind in _FINAL_NAMES, host="" if is_storage else error.host)
        if isinstance(error, RankDied):
            return Failure(summary, step=self._steps_of(error.rank), host=error.host)
        if isinstance(error, DeadlinePassed | ExecutorLost):
            return Failure(summary, host=error.host)
        return Failure(summary)
