"""When a task gives up its rank: after so many looks in a row at which it was suspended or had not finished its imports."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sparkring.spark_jobs.launch.barrier.watch import Event, Watch
from sparkring.spark_jobs.launch.meeting.status_board import Verdict
from sparkring.spark_jobs.launch.rank.end import RankEnd
from tests.support import seams

LOOKS = 10


class Process:
    """A rank process that does nothing, and is found suspended or not as told."""

    tail = "its last words"

    def __init__(self, found: Iterator[bool], *, has_imported: bool = True) -> None:
        self._found, self.has_imported = found, has_imported
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


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.WATCH_LOOK_S, 0.01)
    monkeypatch.setattr(seams.WATCH_SUSPENDED_GRACE_S, 0.0)
    monkeypatch.setattr(seams.WATCH_IMPORT_S, 2 * LOOKS * 0.01)


def watched(process: Any, events: queue.SimpleQueue[Event] | None = None) -> tuple[RankEnd, list[int | None]]:
    """The end that a watch finds, and the severities that it reports."""
    board: Any = PretendedBoard()
    watch = Watch(process, events or queue.SimpleQueue(), rank=1, host="a", deadline_s=LOOKS * 0.01)
    return watch.wait_for_end(board), board.severities


def test_a_rank_is_given_up_when_it_was_found_suspended_throughout() -> None:
    found = [True] * (LOOKS - 1) + [False] + [True] * LOOKS
    process = Process(iter(found))
    end, severities = watched(process)
    assert (end.kind, end.rank, end.host, end.output_tail) == ("suspended", 1, "a", "its last words")
    assert process.looks == len(found)
    assert severities == [0]


def test_a_rank_that_does_not_finish_its_imports_is_given_up() -> None:
    process = Process(itertools.repeat(False), has_imported=False)
    end, severities = watched(process)
    assert (end.kind, end.failed, "did not import" in end.summary) == ("waited", True, True)
    assert process.looks == 2 * LOOKS
    assert severities == [0]


def test_a_gpu_that_answers_when_nobody_waits_any_more_is_no_end_of_its_rank() -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    events.put({"kind": "device", "summary": None})
    events.put({"kind": "died", "exit_code": 3})
    end, _ = watched(Process(itertools.repeat(False)), events)
    assert (end.kind, end.exit_code) == ("died", 3)
