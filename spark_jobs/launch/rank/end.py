"""The end of a rank, and the one of several ends that caused the others.

Plain data that crosses from the Spark tasks to the driver as JSON; imports neither pyspark nor torch.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from sparkring.errors import (
    UNKNOWN_HOST,
    DeadlinePassed,
    EnvironmentProblem,
    PeerSilent,
    RankDied,
    RankFailed,
    RingEnded,
    RingError,
    SparkringError,
    class_names,
)

Json: TypeAlias = Any
"""A value that ``json.dumps`` accepts. A recursive type would refuse ``dict[str, float]``, since dict is invariant."""

EndKind: TypeAlias = Literal["done", "raised", "died", "refused", "waited", "lost", "cut_off", "suspended", "ended", "idle"]

CAUSE_GRACE_S = 2.0
"""Seconds to look for the cause after a rank has only reported that another one is gone."""
_LOST_PEER = (*(f"{name}: " for name in sorted(class_names(PeerSilent, DeadlinePassed, RingEnded))), "HorovodInternalError",
              "Horovod has been shut down", "Connection closed by peer", "Connection reset by peer", "gloo::IoException")
"""Words of ranks of ours, of Horovod and of Gloo, where another rank is gone or silent."""
_TIMED_OUT = (*(f"{name}: " for name in sorted(class_names(DeadlinePassed))), "Wait timeout after", "Timed out waiting",
              "is stalled for longer than")
"""Words of ranks of ours, of Gloo and of Horovod, where a rank gave up waiting."""

_IN_OWN_WORDS: Mapping[EndKind, type[SparkringError]] = {"refused": EnvironmentProblem, "waited": DeadlinePassed, "lost": RingError}
"""Ends whose summary is the whole message, and the error to raise with it."""


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """The end of one rank."""

    rank: int
    host: str
    """Empty if it is unknown."""
    kind: EndKind
    """``done``: has a result. ``raised``: an exception. ``died``: ended without a report. ``refused``: its environment is
    unsuitable. ``waited``: its task waited for others that did not come. ``lost``: its task lost contact with the others.
    ``suspended``: its process was suspended (SIGSTOP) for too long, so its task ended it. ``ended``: ended by its task because
    of another rank. ``cut_off``: it could no longer reach those on ``host`` (barrier/cut_off.py). ``idle``: not a rank of the ring,
    which left its host out."""
    result: Json = None
    summary: str = ""
    """For ``raised``: type and message. For ``refused``, ``waited`` and ``lost``: the whole message."""
    traceback: str = ""
    exit_code: int = 0
    """For ``died``: if negative, the number of a signal, as in ``subprocess``."""
    output_tail: str = ""
    """The last lines that the rank wrote."""
    awaited: tuple[int, ...] = ()
    """For ``raised``: the ranks that it waited for until the deadline, if it knows them."""
    order: int = 0
    """Number of ranks of this ring that failed before."""

    @property
    def severity(self) -> int:
        """0: a cause. 1: a cause, unless another end has 0. 2: the effect of another rank's end."""
        if self.kind == "lost" or _reports_lost_peer(self.output_tail if self.kind == "died" else self.summary):
            return 2
        return int(self.kind == "died" and self.exit_code == -signal.SIGABRT)

    @property
    def failed(self) -> bool:
        """Whether this end calls for ending the other ranks."""
        return self.kind not in ("done", "ended", "idle")

    @property
    def timed_out(self) -> bool:
        """Whether the rank gave up waiting for another one."""
        return bool(self.awaited) or (self.severity == 2 and any(words in self.summary + self.output_tail for words in _TIMED_OUT))

    @property
    def place(self) -> str:
        """The host, in words."""
        return self.host or UNKNOWN_HOST

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankEnd:
        """The inverse of ``to_json``."""
        fields = json.loads(text)
        return cls(**fields | {"awaited": tuple(fields.get("awaited", ()))})

    def error(self) -> SparkringError:
        """The error to raise on the driver for this end."""
        if self.kind == "raised":
            return RankFailed(self.rank, self.summary, self.traceback, host=self.host)
        if self.kind == "died":
            return RankDied(self.rank, self.host, self.exit_code, stderr_tail=self.output_tail)
        if self.kind == "suspended":
            return DeadlinePassed(
                f"rank {self.rank} on {self.place} was suspended (SIGSTOP) for longer than train.ring.deadline_s; "
                f"find out what suspends processes there.\nlast lines that it wrote:\n{self.output_tail}",
                awaited=(self.rank,), host=self.host)
        if self.kind == "cut_off":
            return DeadlinePassed(self.summary, awaited=self.awaited, host=self.host)
        if self.kind in _IN_OWN_WORDS:
            return _IN_OWN_WORDS[self.kind](self.summary)
        return RingError(f"rank {self.rank} on {self.place} was ended before it had a result, and no rank reported why; "
                         "see the executors' logs.")


def result_to_json(result: Json) -> str:
    """A function's result as JSON.

    Raises:
        TypeError: JSON cannot hold it; the message lists what a function may return.
    """
    try:
        return json.dumps(result)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the function returned a {type(result).__name__} that JSON cannot hold ({error}); "
                        "return numbers, strings, lists and dicts of them") from None


def results_or_error(ends: Iterable[RankEnd]) -> list[Json]:
    """Return the results by rank, or raise the error of the rank that failed first.

    Args:
        ends: One end a rank, in any order.
    Raises:
        SparkringError: some rank has no result; the cause is raised, not its effects on other ranks.
    """
    by_rank = sorted((end for end in ends if end.kind != "idle"), key=lambda end: end.rank)
    failures = [end for end in by_rank if end.failed] or [end for end in by_rank if end.kind == "ended"]
    if not failures:
        return [end.result for end in by_rank]
    cause = min(failures, key=lambda end: (end.severity, end.order, end.rank))
    hosts = {end.rank: end.host for end in by_rank}
    awaited = cause.awaited or [end.rank for end in by_rank if end.kind == "ended"]
    if cause.timed_out and awaited:
        words = f"\nit raised {cause.summary}" if cause.kind == "raised" else ""
        raise DeadlinePassed(
            f"rank {cause.rank} on {cause.place} waited longer than train.ring.deadline_s for rank {' and '.join(map(str, awaited))}, "
            f"which still ran; find out what delays it, or raise the deadline.{words}\nlast lines that rank {cause.rank} wrote:\n"
            f"{cause.output_tail}", awaited=awaited, host=hosts.get(awaited[0], ""))
    raise cause.error()


def _reports_lost_peer(text: str) -> bool:
    """Whether a rank of ours, Horovod or Gloo reports in ``text`` that another rank is gone or silent."""
    return any(words in text for words in _LOST_PEER)
