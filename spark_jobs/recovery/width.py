"""The number of ranks of each generation: chosen before it starts, and watched while it runs.

    slots    4  4  3  3  3  4  4        an executor is decommissioned, and another one comes
    ranks    4  4| 3  3  3| 4  4        | the ranks save and end, and the next generation has another width

Spark's number of slots does not show which are on hosts that were left out, nor, under dynamic allocation, how many will come. Both are
known only from the last launch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sparkring.conf.schema import Config, TrainConfig
from sparkring.errors import HostsLeftOut, NotEnoughSlots, SparkEnded, SparkringError
from sparkring.spark_jobs.recovery.resize import resized
from sparkring.spark_jobs.recovery.ring import Ring
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.spark.progress import Progress

LOOK_S = 1.0
"""Seconds between two polls of the slots: lost ones may come back, and new ones may appear."""
FEWER_LOOKS = 2
"""Polls in a row that must find fewer slots than ranks before the run shrinks."""
LISTEN_S = 0.1
"""Seconds between two checks of whether the run was asked to stop."""


@dataclass(frozen=True)
class Width:
    """The train config of a generation; ``wanted`` is true if it is the one the user asked for."""

    train: TrainConfig
    wanted: bool


class Widths:
    """Chooses and watches the widths of one run's generations."""

    def __init__(self, config: Config, ring: Ring, *, works: Callable[[TrainConfig], bool], stop: StopRequest, progress: Progress) -> None:
        """Take the arguments of ``Supervisor``."""
        self._wanted, self._ring, self._works, self._stop, self._progress = config.train, ring, works, stop, progress
        self._elsewhere: HostsLeftOut | None = None
        """The slots that the last launch found, if it had to leave out hosts and the others had too few."""
        self._came: int | None = None
        """Under dynamic allocation: number of slots that came for the last launch, if they were too few."""
        self._in_vain = 0
        """Slots that Spark reported when too few of them came: others use them, or they are unusable."""

    def choose(self, *, failed: bool, begun: Callable[[], bool]) -> Width:
        """Choose the width of the next generation: as many ranks as wanted or, once the run has begun, as there are slots for.

        After a failure, lost slots get a while to come back. The minimum is waited for as long as at the start.

        Args:
            failed: Whether the generation before failed.
            begun: Returns whether the run has begun: before that it does not shrink.
        Raises:
            NotEnoughSlots: the slots are too few for ``min_ranks`` or for any layout.
            SparkEnded: Spark no longer answers.
        """
        slots = self._slots_after_wait(failed=failed)
        may_shrink = not self._stop.asked and begun() and self._wanted.recovery.shrink  # report a request to stop, not a lack of slots
        if slots is None or slots >= self._wanted.num_ranks or not may_shrink:
            self._came = None
            return Width(self._wanted, wanted=True)  # the launcher refuses if there are too few
        train = self._shrunk_to(slots)
        if train is None:
            raise self._too_few(slots)
        self._progress.note(f"training: there are {slots} slots for {self._wanted.num_ranks} ranks; continuing with {train.num_ranks}")
        self._came = None
        return Width(train, wanted=False)

    def require_spark(self) -> None:
        """Check that Spark still answers.

        Raises:
            SparkEnded: it does not.
        """
        self._slots()

    def does_without(self, found: HostsLeftOut) -> bool:
        """Whether the next launch uses the slots that this one found on hosts not left out; if not, it needs all hosts."""
        before = self._elsewhere
        # The launch before found the same numbers, and knowing them did not help.
        again = before is not None and (before.slots, before.slots_left_out) == (found.slots, found.slots_left_out)
        if again and before is not None and self._ring.grows_on_demand():  # unless as many ranks as wanted were tried once more
            again = found.wanted <= before.slots
        if again or not self._wanted.recovery.shrink or self._shrunk_to(found.slots) is None:
            self._elsewhere = None
            return False
        self._elsewhere, self._came = found, found.slots
        return True

    def accepts_fewer(self, error: Exception, *, begun: Callable[[], bool]) -> bool:
        """Whether the next launch asks for fewer ranks, since no more slots came for this one."""
        if not isinstance(error, NotEnoughSlots) or error.slots is None or error.slots >= error.wanted or not self._ring.grows_on_demand():
            return False
        if not (begun() and self._wanted.recovery.shrink) or self._shrunk_to(error.slots) is None:
            return False
        self._came, self._in_vain = error.slots, self._slots_or_none() or 0
        return True

    @contextmanager
    def watched(self, width: Width) -> Iterator[None]:
        """While a generation runs: have it save and end when it is asked to or the number of slots changes."""
        done = threading.Event()

        def look() -> None:
            looked, complete, fewer = time.monotonic(), False, 0
            while not done.wait(LISTEN_S):
                due = time.monotonic() - looked >= LOOK_S
                if due:
                    looked, slots = time.monotonic(), self._slots_or_none()
                    complete = complete or (slots is not None and slots >= width.train.num_ranks)  # otherwise executors are still arriving
                    fewer = fewer + 1 if complete and self._must_shrink(width, slots) else 0
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

    def _slots_after_wait(self, *, failed: bool) -> int | None:
        """The slots; after a failure, wait for lost ones to come back."""
        recovery = self._wanted.recovery
        began = time.monotonic()
        while (slots := self._slots()) is not None and slots < self._wanted.num_ranks and failed:
            hopeless = recovery.shrink and self._shrunk_to(slots) is None
            timeout_s = max(recovery.wait_for_slots_s, self._wanted.ring.start_timeout_s) if hopeless else recovery.wait_for_slots_s
            if time.monotonic() - began >= timeout_s or self._stop.wait(LOOK_S):
                break
        return slots

    def _too_few(self, slots: int) -> NotEnoughSlots:
        most = self._wanted.num_ranks
        needed = next((ranks for ranks in range(slots + 1, most) if self._shrunk_to(ranks)), most)
        fits = resized(self._wanted, slots, works=self._works) is not None  # so it is min_ranks that asks for more
        return NotEnoughSlots(wanted=needed, slots=slots, where="what is left of the cluster",
                              remedy="run the same command again, which resumes, once executors are back"
                                     + (f", or set train.recovery.min_ranks to at most {slots}" if fits else ""))

    def _shrunk_to(self, slots: int) -> TrainConfig | None:
        """The layout for so many slots, or None if it has fewer ranks than ``min_ranks``."""
        train = resized(self._wanted, slots, works=self._works)
        return None if train is None or train.num_ranks < self._wanted.recovery.min_ranks else train

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

    def _slots_or_none(self) -> int | None:
        try:
            return self._usable(self._ring.slots())
        except Exception:  # noqa: BLE001 (a session that is ending may raise anything)
            return None

    def _could_grow(self, width: Width, slots: int | None) -> bool:
        """Whether there are slots for more ranks than are training."""
        if width.wanted or slots is None or slots <= self._in_vain:
            return False
        larger = resized(self._wanted, slots, works=self._works)
        return larger is not None and larger.num_ranks > width.train.num_ranks

    def _must_shrink(self, width: Width, slots: int | None) -> bool:
        """Whether an executor with ranks is being decommissioned, and the others can continue without it.

        It keeps running until its host is taken away, but Spark no longer counts its slots.
        """
        recovery = self._wanted.recovery
        if slots is None or slots >= width.train.num_ranks or not recovery.shrink:
            return False
        return self._shrunk_to(slots) is not None
