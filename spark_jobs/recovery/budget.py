"""How often a run may be started again: so many times without progress, and never for the same bug.

Pure: decides from what it is told.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """How a generation of a run ended, as far as going on depends on it."""

    summary: str
    """One line for people: which rank, what happened."""
    exception: str = ""
    """Type and message of what a rank's own code raised; empty where a rank or its machine was lost."""
    step: int = -1
    """Optimizer steps that the failed rank had done since the run began; -1 where it had not begun."""
    host: str = ""
    """Where the rank ran, if that is known."""
    final: bool = False
    """Whether only people can mend it: a wrong config, a damaged dataset."""


class RestartBudget:
    """Says after each failure whether the run is worth another generation."""

    def __init__(self, restarts: int) -> None:
        """``restarts``: how many generations may fail one after the other without a new checkpoint between them."""
        self._restarts, self._left = restarts, restarts
        self._committed = -1
        self._raised: set[tuple[str, int]] = set()

    @property
    def used(self) -> int:
        """Restarts since the last progress."""
        return self._restarts - self._left

    def objection(self, failure: Failure, *, committed: int) -> str | None:
        """Why the run is not to be started again, or None; counts the restart that follows.

        Args:
            failure: What has just happened.
            committed: Optimizer steps of the latest checkpoint; -1 where there is none.
        """
        if failure.final:
            return "starting again would not help"
        bug = (failure.exception, failure.step)
        if failure.exception and failure.step >= 0 and bug in self._raised:  # what goes wrong at every start may be the network
            return (f"the same exception came at the same step ({failure.step}) before, so the cause is in the code or the data, "
                    "not in a machine")
        self._raised.add(bug)
        if committed != self._committed:  # fewer than before, too: a damaged one was passed over, and a new one is there
            self._committed, self._left = committed, self._restarts
        if self._left == 0:
            return f"{self._restarts} restarts brought no new checkpoint (train.recovery.restarts={self._restarts})"
        self._left -= 1
        return None


class HostRecord:
    """Which hosts have failed so often that the next generation had better do without them."""

    def __init__(self, failures: int) -> None:
        """``failures``: of one host, one after the other with none of another host between them, until it is left out."""
        self._limit, self._last, self._count = failures, "", 0
        self._left_out: set[str] = set()

    def failed(self, host: str) -> bool:
        """Count a failure; whether the host is left out from now on."""
        self._count = self._count + 1 if host == self._last else 1
        self._last = host
        if not host or self._count < self._limit or host in self._left_out:
            return False
        self._left_out.add(host)
        return True

    def forgive(self) -> None:
        """Leave out none of them any more."""
        self._left_out.clear()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Hosts to do without, sorted."""
        return tuple(sorted(self._left_out))
