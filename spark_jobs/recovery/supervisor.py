"""A run from its first generation to its end: what failed is named and started again from the last checkpoint, on the ranks there are.

    generation 0   4 ranks  ---- checkpoint ---- checkpoint --x  rank 2 died
    generation 1   3 ranks       3 slots are left         +-------- checkpoint --|  asked to stop: there are 4 slots again
    generation 2   4 ranks                                                   +------ ... end

It is asked to stop, too, where an executor is about to go (decommissioned): the ranks save, and go on with what is left.

All ranks of a generation end together. The run folder alone says where a run stands, so the same command goes on too, whoever died.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
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
)
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.spark_jobs.recovery.budget import Failure, HostRecord, RestartBudget
from sparkring.spark_jobs.recovery.resize import resized
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.spark.progress import Progress

LOOK_S = 1.0
"""Seconds between two looks at the slots: for those that a failure took to come back, and for more to train on."""
FEWER_LOOKS = 2
"""Looks in a row that have to find fewer slots than ranks."""
LISTEN_S = 0.1
"""Seconds between two looks at whether somebody has asked the run to stop."""
FINAL = (ConfigError, DatasetError, CheckpointDamaged, CommitConflict, NotFinite)
"""What a rank raises that only people can mend; their subclasses too."""


def _names(errors: Iterable[type[Exception]]) -> Iterator[str]:
    """Of these classes and all that are made of them: of what a rank raised, the driver hears the name alone."""
    for error in errors:
        yield error.__name__
        yield from _names(error.__subclasses__())


_FINAL_NAMES = frozenset(_names(FINAL))
_STORAGE_NAMES = frozenset(_names([StorageError]))
"""What a rank raises in the same words at the same step again, where storage is away for longer, and which is no bug."""


class Ring(Protocol):
    """What the supervisor needs of the world: the ring that it starts, and what can be known of it from outside."""

    def slots(self) -> int | None:
        """Ranks that could run at once now; None where that cannot be known."""
        ...

    def grows_on_demand(self) -> bool:
        """Whether slots come once ranks wait for them, so that none need be there before."""
        ...

    def run(self, config: Config, left_out: tuple[str, ...]) -> TrainSummary:
        """One generation with this config, on no host of ``left_out``."""
        ...

    def ask_to_stop(self) -> bool:
        """Have the generation that runs save and end after the step that it is in; whether there is one that will hear it."""
        ...

    def committed(self) -> int:
        """Optimizer steps of the latest checkpoint; -1 where there is none."""
        ...

    def steps_of(self, rank: int) -> int:
        """Optimizer steps that a rank of the last generation had done since the run began; -1 where it had not begun."""
        ...


@dataclass(frozen=True)
class _Width:
    """With what a generation runs, and whether it is less than was asked for."""

    train: TrainConfig
    wanted: bool


class Supervisor:
    """Keeps one run going."""

    def __init__(self, config: Config, ring: Ring, *, works: Callable[[TrainConfig], bool], stop: StopRequest, progress: Progress) -> None:
        """Prepare; starts nothing.

        Args:
            config: As the user wants it.
            ring: Where generations run.
            works: Whether a layout can be had for the model.
            stop: By which somebody else asks the run to end early.
            progress: Is told of every failure and restart.
        """
        self._config, self._ring, self._works, self._stop, self._progress = config, ring, works, stop, progress
        recovery = config.train.recovery
        self._budget = RestartBudget(recovery.restarts)
        self._hosts = HostRecord(recovery.leave_out_after)
        self._elsewhere: HostsLeftOut | None = None
        """What the last launch found that was to do without some hosts, and could not."""
        self._came: int | None = None
        """Where slots come once ranks wait for them: how many came for the last launch, if they were too few."""
        self._in_vain = 0
        """Slots that Spark told of when too few of them came: others are using them, or they are no good."""
        self._last_committed = -1

    def run(self) -> TrainSummary:
        """Run generations until one is done.

        Raises:
            Stopped: somebody asked for it; the run is saved.
            RingError, EnvironmentProblem, ...: what the last generation failed of, once there is no sense in another one.
        """
        failed, first = False, True
        while True:
            try:
                width = self._width(failed=failed, first=first)
                self._came = None
                if self._stop.asked:  # while no ranks were there that could save
                    raise Stopped(f"stopped as asked ({self._stop.reason}) before ranks were started; the same command goes on from the "
                                  "last checkpoint.")
                with self._watching_slots(width):
                    summary = self._ring.run(self._config.model_copy(update={"train": width.train}), self._hosts.left_out)
            except HostsLeftOut as found:
                self._leave_out_hosts(found)
                failed = first = False
                continue
            except (RingError, EnvironmentProblem, OSError) as error:  # of storage, too
                failed = not self._accepts_fewer(error, first=first)
                if failed:
                    self._count(error, first=first)
                first = False
                continue
            failed = first = False
            if not summary.interrupted:
                return summary
            if self._stop.asked:  # else there are other slots now than it began with
                raise Stopped(f"stopped as asked ({self._stop.reason}) after {summary.steps} steps, which are saved; "
                              "the same command goes on from there.")

    def _count(self, error: RingError | EnvironmentProblem | OSError, *, first: bool) -> None:
        """Note a failure; raises it where the run is not to be started again."""
        refused = first and (isinstance(error, NotEnoughSlots) or not isinstance(error, RingError))  # nothing broke: it was never there
        if refused or isinstance(error, SparkEnded) or self._stop.asked or not self._config.train.recovery.restarts:
            raise error
        failure = self._describe(error)
        objection = self._budget.objection(failure, committed=self._committed())
        if objection:
            error.add_note(f"Not started again: {objection}.")
            raise error
        limit = self._config.train.recovery.restarts
        self._progress.note(f"training: {failure.summary}; going on from the last checkpoint (restart {self._budget.used} of {limit})")
        if self._hosts.failed(failure.host):
            self._progress.note(f"training: {failure.host} failed {self._config.train.recovery.leave_out_after} times in a row; "
                                "going on without it")

    def _leave_out_hosts(self, found: HostsLeftOut) -> None:
        """Go on with fewer ranks on the other hosts or, where that is not worth it, on those that were left out, too."""
        recovery = self._config.train.recovery
        before = self._elsewhere
        # Knowing how many there are did not help.
        again = before is not None and (before.slots, before.slots_left_out) == (found.slots, found.slots_left_out)
        if again and before is not None and self._ring.grows_on_demand():  # unless as many ranks as wanted were tried once more
            again = found.wanted <= before.slots
        if again or not recovery.shrink or self._shrunk_to(found.slots) is None:
            self._hosts.forgive()
            self._elsewhere = None
            self._progress.note(f"training: hosts that did not fail have {found.slots} slots, too few to go on; all may get ranks again")
        else:
            self._elsewhere = found
            self._came = found.slots

    def _accepts_fewer(self, error: Exception, *, first: bool) -> bool:
        """Whether the next launch asks for fewer ranks, as no more slots came for this one."""
        if not isinstance(error, NotEnoughSlots) or error.slots is None or error.slots >= error.wanted or not self._ring.grows_on_demand():
            return False
        begun = not first or self._committed() >= 0
        if not (begun and self._config.train.recovery.shrink) or self._shrunk_to(error.slots) is None:
            return False
        self._came, self._in_vain = error.slots, self._slots_or_none() or 0
        return True

    def _committed(self) -> int:
        """As far as storage tells now; else as little as if there were none, which counts as no progress where there was none."""
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
        """With how many ranks to go on: as many as are wanted, or, where a run has begun already, as there are.

        After a failure, slots get a while to come back; the least that it takes as long as slots are waited for at the start.

        Raises:
            NotEnoughSlots: there are fewer than the run can do with.
            SparkEnded: Spark does not answer any more.
        """
        wanted, recovery = self._config.train, self._config.train.recovery
        began = time.monotonic()
        while (slots := self._slots()) is not None and slots < wanted.num_ranks and failed:
            hopeless = recovery.shrink and self._shrunk_to(slots) is None
            patience_s = max(recovery.wait_for_slots_s, wanted.ring.start_timeout_s) if hopeless else recovery.wait_for_slots_s
            if time.monotonic() - began >= patience_s or self._stop.wait(LOOK_S):
                break
        if self._stop.asked:  # and is to hear that, not of slots
            return _Width(wanted, wanted=True)
        begun = not first or self._committed() >= 0
        if slots is None or slots >= wanted.num_ranks or not (begun and recovery.shrink):
            return _Width(wanted, wanted=True)  # if there are too few all the same, the launcher says so
        train = self._shrunk_to(slots)
        if train is None:
            raise NotEnoughSlots(wanted=recovery.min_ranks, slots=slots, master="what is left of the cluster")
        self._progress.note(f"training: {slots} slots are there for {wanted.num_ranks} ranks; going on with {train.num_ranks}")
        return _Width(train, wanted=False)

    def _shrunk_to(self, slots: int) -> TrainConfig | None:
        """The layout for so many slots, if it is worth going on with."""
        train = resized(self._config.train, slots, works=self._works)
        return None if train is None or train.num_ranks < self._config.train.recovery.min_ranks else train

    def _usable(self, slots: int | None) -> int | None:
        """Of so many slots those that are not on hosts that are left out, as far as the last launch found out."""
        found = self._elsewhere
        if found is None or slots is None:
            return slots
        if slots <= found.slots:  # the hosts that were left out may have gone, and what comes may be on others: the next launch finds out
            self._elsewhere = None
            return slots
        return max(found.slots, slots - found.slots_left_out)

    def _slots(self) -> int | None:
        try:
            return self._came if self._ring.grows_on_demand() else self._usable(self._ring.slots())
        except SparkringError:
            raise
        except Exception as error:  # a session whose JVM has ended answers with whatever Py4J or the socket says
            raise SparkEnded(f"Spark does not answer ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}): its JVM has "
                                     "ended, or cannot be reached; run the same command again, which goes on from the last "
                                     "checkpoint.") from error

    @contextmanager
    def _watching_slots(self, width: _Width) -> Iterator[None]:
        """While a generation runs: have it save and end where somebody asks for it, or where other slots are there than it began with."""
        done = threading.Event()

        def look() -> None:
            looked, begun, fewer = time.monotonic(), False, 0
            while not done.wait(LISTEN_S):
                due = time.monotonic() - looked >= LOOK_S
                if due:
                    looked, slots = time.monotonic(), self._slots_or_none()
                    begun = begun or (slots is not None and slots >= width.train.num_ranks)  # else executors are still coming
                    fewer = fewer + 1 if begun and self._must_shrink(width, slots) else 0
                    due = fewer >= FEWER_LOOKS or self._could_grow(width, slots)
                if self._stop.asked or due:
                    with suppress(OSError, SparkringError):  # storage that is away for a moment, or ranks to come, hear it the next time
                        if self._ring.ask_to_stop():
                            return

        thread = threading.Thread(target=look, name="sparkring-supervisor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(2 * LOOK_S)  # Spark may be slow to tell its slots

    def _slots_or_none(self) -> int | None:
        try:
            return self._usable(self._ring.slots())
        except Exception:  # noqa: BLE001 (a session that is ending answers with whatever it likes)
            return None

    def _could_grow(self, width: _Width, slots: int | None) -> bool:
        """Whether there are slots for more ranks than train now."""
        if width.wanted or slots is None or slots <= self._in_vain:
            return False
        larger = resized(self._config.train, slots, works=self._works)
        return larger is not None and larger.num_ranks > width.train.num_ranks

    def _must_shrink(self, width: _Width, slots: int | None) -> bool:
        """Whether an executor is about to go that ranks train on, and others can go on without it.

        One that is decommissioned runs on until its machine is taken away, but Spark counts its slots no more.
        """
        recovery = self._config.train.recovery
        if slots is None or slots >= width.train.num_ranks or not recovery.shrink:
            return False
        return self._shrunk_to(slots) is not None
