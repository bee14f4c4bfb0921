"""A run from its first generation to its end: a failure is named, and the run restarts from the last checkpoint on the ranks available.

    generation 0   4 ranks  ---- checkpoint ---- checkpoint --x  rank 2 died
    generation 1   3 ranks       3 slots are left         +-------- checkpoint --|  asked to stop: there are 4 slots again
    generation 2   4 ranks                                                   +------ ... end

A generation is also asked to stop when an executor is being decommissioned: the ranks save, and the next generation uses the rest.

All ranks of a generation end together. The run folder alone holds the state of a run, so the same command resumes it after any death.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

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
from sparkring.spark_jobs.recovery.resize import resized
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.spark.progress import Progress

LOOK_S = 1.0
"""Seconds between two polls of the slots: lost ones may come back, and new ones may appear."""
FEWER_LOOKS = 2
"""Polls in a row that must find fewer slots than ranks before the run shrinks."""
LISTEN_S = 0.1
"""Seconds between two checks of whether the run was asked to stop."""
FINAL = (ConfigError, DatasetError, CheckpointDamaged, CommitConflict, NotFinite)
"""Errors on a rank, with their subclasses, that only people can fix."""
_FINAL_NAMES = class_names(*FINAL)
_STORAGE_NAMES = class_names(StorageError)
"""Raised again at the same step with the same words while storage is unreachable; not a bug."""


class Ring(Protocol):
    """The rings of one run, as the supervisor starts and observes them."""

    def slots(self) -> int | None:
        """Ranks that could run at once now; None if that cannot be known."""
        ...

    def grows_on_demand(self) -> bool:
        """Whether slots appear only once ranks wait for them (dynamic allocation)."""
        ...

    def run(self, config: Config, left_out: tuple[str, ...]) -> TrainSummary:
        """Run one generation with this config, on no host of ``left_out``."""
        ...

    def ask_to_stop(self) -> bool:
        """Have the running generation save and end after its current step; returns whether there is one that will."""
        ...

    def committed(self) -> int:
        """Optimizer steps of the latest checkpoint; -1 if there is none."""
        ...

    def steps_of(self, rank: int) -> int:
        """Optimizer steps that a rank of the last generation had done since the run began; -1 if it had not started."""
        ...


@dataclass(frozen=True)
class _Width:
    """The train config of a generation; ``wanted`` is true if it is the one the user asked for."""

    train: TrainConfig
    wanted: bool


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
        self._config, self._ring, self._works, self._stop, self._progress = config, ring, works, stop, progress
        recovery = config.train.recovery
        self._budget = RestartBudget(recovery.restarts)
        self._hosts = HostRecord(recovery.leave_out_after)
        self._elsewhere: HostsLeftOut | None = None
        """The slots that the last launch found, if it had to leave out hosts and the others had too few."""
        self._came: int | None = None
        """Under dynamic allocation: number of slots that came for the last launch, if they were too few."""
        self._in_vain = 0
        """Slots that Spark reported when too few of them came: others use them, or they are unusable."""
        self._last_committed = -1

    def run(self) -> TrainSummary:
        """Run generations until one is done.

        Raises:
            Stopped: the run was asked to stop, and is saved.
            RingError, EnvironmentProblem, OSError: the last generation's failure, if another one would not help.
        """
        failed, first = False, True
        while True:
            try:
                width = self._width(failed=failed, first=first)
                self._came = None
                if self._stop.asked:  # while there were no ranks to save
                    raise Stopped(f"stopped as asked ({self._stop.reason}) before ranks were started; the same command resumes from the "
                                  "last checkpoint.", signal_number=self._stop.signal_number)
                with self._watching_slots(width):
                    summary = self._ring.run(self._config.changed(train=width.train), self._hosts.left_out)
            except HostsLeftOut as found:
                self._leave_out_hosts(found)
                failed = first = False
                continue
            except (RingError, EnvironmentProblem, OSError) as error:  # OSError: storage
                failed = not self._accepts_fewer(error, first=first)
                if failed:
                    self._count(error, first=first)
                first = False
                continue
            failed = first = False
            if not summary.interrupted:
                return summary
            if self._stop.asked:  # otherwise the number of slots has changed
                raise Stopped(f"stopped as asked ({self._stop.reason}) after {summary.steps} steps, which are saved; "
                              "the same command resumes from there.", signal_number=self._stop.signal_number)

    def _count(self, error: RingError | EnvironmentProblem | OSError, *, first: bool) -> None:
        """Note a failure; raise it if the run must not be restarted."""
        refused = first and (isinstance(error, NotEnoughSlots) or not isinstance(error, RingError))  # nothing broke: it never worked
        if refused or isinstance(error, SparkEnded) or self._stop.asked or not self._config.train.recovery.restarts:
            raise error
        failure = self._describe(error)
        objection = self._budget.objection(failure, committed=self._committed())
        if objection:
            error.add_note(f"Not restarted: {objection}.")
            raise error
        self._slots()  # raises if Spark has ended, before a restart is announced
        limit = self._config.train.recovery.restarts
        self._progress.note(f"training: {failure.summary}; restarting from the last checkpoint (restart {self._budget.used} of {limit})")
        if self._hosts.failed(failure.host):
            self._progress.note(f"training: {failure.host} failed {self._config.train.recovery.leave_out_after} times in a row; "
                                "continuing without it")

    def _leave_out_hosts(self, found: HostsLeftOut) -> None:
        """Continue with fewer ranks on the other hosts; if these have too few slots, also use the hosts that were left out."""
        recovery = self._config.train.recovery
        before = self._elsewhere
        # The launch before found the same numbers, and knowing them did not help.
        again = before is not None and (before.slots, before.slots_left_out) == (found.slots, found.slots_left_out)
        if again and before is not None and self._ring.grows_on_demand():  # unless as many ranks as wanted were tried once more
            again = found.wanted <= before.slots
        if again or not recovery.shrink or self._shrunk_to(found.slots) is None:
            self._hosts.forgive()
            self._elsewhere = None
            self._progress.note(f"training: hosts that did not fail have {found.slots} slots, too few to continue; all hosts may get "
                                "ranks again")
        else:
            self._elsewhere = found
            self._came = found.slots

    def _accepts_fewer(self, error: Exception, *, first: bool) -> bool:
        """Whether the next launch asks for fewer ranks, since no more slots came for this one."""
        if not isinstance(error, NotEnoughSlots) or error.slots is None or error.slots >= error.wanted or not self._ring.grows_on_demand():
            return False
        begun = not first or self._committed() >= 0
        if not (begun and self._config.train.recovery.shrink) or self._shrunk_to(error.slots) is None:
            return False
        self._came, self._in_vain = error.slots, self._slots_or_none() or 0
        return True

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
        summary = str(error).partition("\n")[0]
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

    # -- width ----------------------------------------------------------------------------------------------------------

    def _width(self, *, failed: bool, first: bool) -> _Width:
        """The width of the next generation: as many ranks as wanted or, once the run has begun, as there are slots for.

        After a failure, lost slots get a while to come back. The minimum is waited for as long as at the start.

        Raises:
            NotEnoughSlots: there are fewer than ``min_ranks``.
            SparkEnded: Spark no longer answers.
        """
        wanted, recovery = self._config.train, self._config.train.recovery
        began = time.monotonic()
        while (slots := self._slots()) is not None and slots < wanted.num_ranks and failed:
            hopeless = recovery.shrink and self._shrunk_to(slots) is None
            timeout_s = max(recovery.wait_for_slots_s, wanted.ring.start_timeout_s) if hopeless else recovery.wait_for_slots_s
            if time.monotonic() - began >= timeout_s or self._stop.wait(LOOK_S):
                break
        if self._stop.asked:  # report the request, not a lack of slots
            return _Width(wanted, wanted=True)
        begun = not first or self._committed() >= 0
        if slots is None or slots >= wanted.num_ranks or not (begun and recovery.shrink):
            return _Width(wanted, wanted=True)  # the launcher refuses if there are too few
        train = self._shrunk_to(slots)
        if train is None:
            raise NotEnoughSlots(wanted=recovery.min_ranks, slots=slots, master="what is left of the cluster")
        self._progress.note(f"training: there are {slots} slots for {wanted.num_ranks} ranks; continuing with {train.num_ranks}")
        return _Width(train, wanted=False)

    def _shrunk_to(self, slots: int) -> TrainConfig | None:
        """The layout for so many slots, or None if it has fewer ranks than ``min_ranks``."""
        train = resized(self._config.train, slots, works=self._works)
        return None if train is None or train.num_ranks < self._config.train.recovery.min_ranks else train

    def _usable(self, slots: int | None) -> int | None:
        """The number of these slots that are on hosts not left out, as far as the last launch found out."""
        found = self._elsewhere
        if found is None or slots is None:
            return slots
        if slots <= found.slots:  # hosts left out may have gone: the next launch finds out
            self._elsewhere = None
            return slots
        return max(found.slots, slots - found.slots_left_out)

    def _slots(self) -> int | None:
        try:
            return self._came if self._ring.grows_on_demand() else self._usable(self._ring.slots())
        except SparkringError:
            raise
        except Exception as error:  # a session whose JVM has ended raises whatever Py4J or the socket raises
            raise SparkEnded(f"Spark does not answer ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}): its JVM has "
                             "ended or cannot be reached; run the same command again to resume from the last checkpoint.") from error

    @contextmanager
    def _watching_slots(self, width: _Width) -> Iterator[None]:
        """While a generation runs: have it save and end when it is asked to or the number of slots changes."""
        done = threading.Event()

        def look() -> None:
            looked, begun, fewer = time.monotonic(), False, 0
            while not done.wait(LISTEN_S):
                due = time.monotonic() - looked >= LOOK_S
                if due:
                    looked, slots = time.monotonic(), self._slots_or_none()
                    begun = begun or (slots is not None and slots >= width.train.num_ranks)  # otherwise executors are still arriving
                    fewer = fewer + 1 if begun and self._must_shrink(width, slots) else 0
                    due = fewer >= FEWER_LOOKS or self._could_grow(width, slots)
                if self._stop.asked or due:
                    with suppress(OSError, SparkringError):  # unreachable storage, or ranks still starting: the next try
                        if self._ring.ask_to_stop():
                            return

        thread = threading.Thread(target=look, name="sparkring-supervisor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(2 * LOOK_S)  # Spark may be slow to count its slots

    def _slots_or_none(self) -> int | None:
        try:
            return self._usable(self._ring.slots())
        except Exception:  # noqa: BLE001 (a session that is ending may raise anything)
            return None

    def _could_grow(self, width: _Width, slots: int | None) -> bool:
        """Whether there are slots for more ranks than are training."""
        if width.wanted or slots is None or slots <= self._in_vain:
            return False
        larger = resized(self._config.train, slots, works=self._works)
        return larger is not None and larger.num_ranks > width.train.num_ranks

    def _must_shrink(self, width: _Width, slots: int | None) -> bool:
        """Whether an executor with ranks is being decommissioned, and the others can continue without it.

        It keeps running until its host is taken away, but Spark no longer counts its slots.
        """
        recovery = self._config.train.recovery
        if slots is None or slots >= width.train.num_ranks or not recovery.shrink:
            return False
        return self._shrunk_to(slots) is not None
