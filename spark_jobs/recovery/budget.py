"""How often a run may be restarted: a limited number of times without progress, and never for the same bug. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """The facts of a failed generation that decide whether to restart."""

    summary: str
    """One line: which rank, what happened."""
    exception: str = ""
    """Type and message of the exception that code on a rank raised; empty if a rank or its host was lost."""
    step: int = -1
    """Optimizer steps that the failed rank had done since the run began; -1 if it had not started."""
    host: str = ""
    """The host of the rank, if known."""
    final: bool = False
    """Whether only people can fix it: a wrong config, a damaged dataset."""


class RestartBudget:
    """Decides after each failure whether the run gets another generation."""

    def __init__(self, restarts: int) -> None:
        """``restarts``: number of generations that may fail in a row without a new checkpoint between them."""
        self._restarts, self._left = restarts, restarts
        self._committed = -1
        self._raised: set[tuple[str, int]] = set()

    @property
    def used(self) -> int:
        """Restarts since the last progress."""
        return self._restarts - self._left

    def objection(self, failure: Failure, *, committed: int) -> str | None:
        """The reason that the run must not be restarted, or None; counts the restart that follows.

        Args:
            failure: The failure of the generation.
            committed: Optimizer steps of the latest checkpoint; -1 if there is none.
        """
        if failure.final:
            return "a restart would not help"
        bug = (failure.exception, failure.step)
        if failure.exception and failure.step >= 0 and bug in self._raised:  # a failure at every start may be the network's
            return (f"the same exception came at the same step ({failure.step}) before, so the cause is in the code or the data, "
                    "not in a machine")
        self._raised.add(bug)
        if committed != self._committed:  # also fewer than before: a damaged one was skipped, and a new one was written
            self._committed, self._left = committed, self._restarts
        if self._left == 0:
            return f"{self._restarts} restarts brought no new checkpoint (train.recovery.restarts={self._restarts})"
        self._left -= 1
        return None


class HostRecord:
    """The hosts that have failed so often that the next generation leaves them out."""

    def __init__(self, failures: int) -> None:
        """``failures``: number of failures in a row, all of one host, after which it is left out."""
        self._limit, self._last, self._count = failures, "", 0
        self._left_out: set[str] = set()

    def failed(self, host: str) -> bool:
        """Count a failure; returns whether the host is left out from now on because of it."""
        self._count = self._count + 1 if host == self._last else 1
        self._last = host
        if not host or self._count < self._limit or host in self._left_out:
            return False
        self._left_out.add(host)
        return True

    def forgive(self) -> None:
        """Stop leaving out any host."""
        self._left_out.clear()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Hosts to leave out, sorted."""
        return tuple(sorted(self._left_out))
