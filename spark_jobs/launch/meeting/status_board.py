"""The status board: the ranks that are done or failed, and the verdict for their tasks.

A task reports its rank's end once; every task asks for the verdict and is answered as soon as there is one. The
board itself is plain state under a lock; ``rendezvous.py`` serves it, ``StatusBoardClient`` asks over HTTP.

    verdict    running              some rank still works, none failed
               finished             all ranks are done: let them go
               end, severity        a rank failed, or its task no longer asks: end the others; the severity is ``RankEnd.severity``
                                    of the worst cause so far
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import asdict, dataclass
from typing import Literal

from sparkring.errors import RingError

LOST_AFTER_TRIES = 3
"""Requests that may fail in a row before the board counts as gone."""
ANSWER_TIMEOUT_S = 15.0
"""Seconds beyond the heartbeat that an answer may take on a crowded machine."""
SILENT_AFTER_S = 60.0
"""Seconds without a request until a task counts as gone: its process is suspended, or its host is cut off. It is counted in
the requests of the others, so that hosts that were all suspended do not count each other as gone. Its rank may still be running."""


EFFECT = 2
"""``RankEnd.severity`` of an end that another rank's end has caused."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict that the tasks follow."""

    kind: Literal["running", "finished", "end"]
    severity: int = 0
    """For ``end``: the least severity number among the failures known."""

    def to_json(self) -> bytes:
        """One line of JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Verdict:
        """The inverse of ``to_json``."""
        return cls(**json.loads(data))


class StatusBoard:
    """The state of one ring's ranks."""

    def __init__(self, secret: str, *, size: int, heartbeat_s: float) -> None:
        self.secret, self.size, self.heartbeat_s = secret, size, heartbeat_s
        self._changed = threading.Condition()
        self._done: set[int] = set()
        self._failed: dict[int, int] = {}
        self._left: set[int] = set()
        self._missed = [0.0] * size
        """Rounds of requests that each task has missed."""

    def report(self, rank: int, *, severity: int | None) -> int:
        """Record a rank's end; ``severity`` is None for a rank that is done.

        Returns:
            Number of other ranks that failed before.
        """
        self._require_rank(rank)
        with self._changed:
            earlier = len(self._failed.keys() - {rank})
            if severity is None:
                self._done.add(rank)
            else:
                self._failed[rank] = severity
            self._changed.notify_all()
            return earlier

    def verdict(self, rank: int) -> Verdict:
        """Wait up to a heartbeat for something other than ``running``; ``rank`` is the rank of the task that asks."""
        self._require_rank(rank)
        with self._changed:
            self._note_round(rank)
            self._changed.wait_for(lambda: self._verdict().kind != "running", timeout=self.heartbeat_s)
            return self._verdict()

    def leave(self, rank: int) -> None:
        """Note that the task of ``rank`` will not ask again."""
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()

    def wait_until_left(self, *, within_s: float) -> tuple[int, ...]:
        """Wait until every task has left, so that the server can close; returns the ranks of tasks that have not, ascending."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._left) == self.size, timeout=within_s)
            return tuple(rank for rank in range(self.size) if rank not in self._left)

    @property
    def knows_cause(self) -> bool:
        """Whether a task has reported, and left, an end of its rank that was no effect of another's."""
        with self._changed:
            return any(severity < EFFECT and rank in self._left for rank, severity in self._failed.items())

    def _note_round(self, rank: int) -> None:
        """Count the request of this task, and for each other task the share of a round that it has missed."""
        self._missed[rank] = 0.0
        others = [other for other in range(self.size) if other != rank and other not in self._left]
        for other in others:
            self._missed[other] += 1 / len(others)
            if self._missed[other] > SILENT_AFTER_S / self.heartbeat_s:
                self._failed.setdefault(other, 0)

    def _require_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in a ring of {self.size}")

    def _verdict(self) -> Verdict:
        if self._failed:
            return Verdict(kind="end", severity=min(self._failed.values()))
        return Verdict(kind="finished" if len(self._done) == self.size else "running")


class StatusBoardClient:
    """A task's view of the board."""

    def __init__(self, address: str, port: int, *, secret: str, heartbeat_s: float) -> None:
        self._address, self._port, self._secret, self._heartbeat_s = address, port, secret, heartbeat_s

    def report(self, rank: int, *, severity: int | None) -> int:
        """See ``StatusBoard.report``."""
        return int(self._ask("PUT", str(rank), json.dumps(severity)))

    def wait_for_verdict(self, rank: int) -> Verdict:
        """Ask, heartbeat by heartbeat, until there is a verdict; ``rank`` is this task's rank.

        Raises:
            RingError: the board is gone, and with it the task of rank 0.
        """
        while True:
            verdict = Verdict.from_json(self._ask("GET", str(rank)))
            if verdict.kind != "running":
                return verdict

    def leave(self, rank: int) -> None:
        """See ``StatusBoard.leave``."""
        self._ask("DELETE", str(rank))

    def _ask(self, method: str, what: str, body: str | None = None) -> bytes:
        for attempt in range(LOST_AFTER_TRIES):
            connection = http.client.HTTPConnection(self._address, self._port, timeout=self._heartbeat_s + ANSWER_TIMEOUT_S)
            try:
                connection.request(method, f"/{self._secret}/{what}", body)
                response = connection.getresponse()
                if response.status == http.client.OK:
                    return response.read()
            except (OSError, http.client.HTTPException):  # HTTPException: it died in the middle of its answer
                time.sleep(0.2 * (attempt + 1))
            finally:
                connection.close()
        raise RingError(f"lost contact with the task of rank 0 at {self._address}:{self._port}; see that its host runs and can be reached, "
                        "and its executor's log.")

