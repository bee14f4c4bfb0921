"""When a task ends a rank that is suspended: after so many looks in a row, and not one that was continued."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sparkring.spark_jobs.launch.barrier.watch import Event, Watch
from sparkring.spark_jobs.launch.meeting.status_board import Verdict
from tests.support import seams

LOOKS = 10


class Process:
    """A rank process that does nothing, and is found suspended or not as told."""

    tail = "its last words"

    def __init__(self, found: Iterator[bool]) -> None:
        self._found = found
        self.looks = 0

    @property
    def is_suspended(self) -> bool:
        self.looks += 1
        return next(self._found)

    def end(self) -> None:
        """It has nothing to end."""


class PretendedBoard:
    """Gives its verdict once a rank has reported its end."""

    def __init__(self) -> None:
        self.severities: list[int | None] = []
        self._told = threading.Event()

    def wait_for_verdict(self, rank: int) -> Verdict:
        assert self._told.wait(60)
        return Verdict(kind="end", severity=0)

    def report(self, rank: int, *, severity: int | None) -> int:
        self.severities.append(severity)
        self._told.set()
        return 0

    def leave(self, rank: int) -> None:
        """Nobody waits for it."""


def test_a_rank_is_given_up_when_it_was_found_suspended_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.WATCH_LOOK_S, 0.01)
    monkeypatch.setattr(seams.WATCH_SUSPENDED_GRACE_S, 0.0)
    found = [True] * (LOOKS - 1) + [False] + [True] * LOOKS
    process: Any = Process(iter(found))
    board: Any = PretendedBoard()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    end = Watch(process, events, rank=1, host="a", deadline_s=LOOKS * 0.01).wait_for_end(board)
    assert (end.kind, end.rank, end.host, end.output_tail) == ("suspended", 1, "a", "its last words")
    assert process.looks == len(found)
    assert board.severities == [0]
