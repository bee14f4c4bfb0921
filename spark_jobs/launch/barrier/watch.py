"""Watching one rank from its order to its end, and the other ranks through the status board.

Needs no Spark: events come from a queue, which the rank process and the board feed.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from sparkring.errors import RingError
from sparkring.spark_jobs.launch.meeting.status_board import StatusBoardClient, Verdict
from sparkring.spark_jobs.launch.rank.end import CAUSE_GRACE_S, RankEnd
from sparkring.spark_jobs.launch.rank.process import RankProcess, Report
from sparkring.spark_jobs.launch.rank.suspension import SUSPENDED_GRACE_S

LOOK_S = 1.0
"""Seconds between two checks of whether the rank is suspended."""
IMPORT_S = 600.0
"""Seconds for a rank to import what it needs, on the slowest storage; only a rank that hangs takes longer."""

Event: TypeAlias = "Report | int | Verdict | RingError"
"""A report of the rank, its exit code, the board's verdict, or the error that the board is gone."""


class Watch:
    """The watch over one rank process.

    Args:
        process: The rank process.
        events: The queue of its reports and its exit code.
        rank: Its rank.
        host: The host that it runs on.
        deadline_s: Seconds that ranks wait for one that hangs.
    """

    def __init__(self, process: RankProcess, events: queue.SimpleQueue[Event], *, rank: int, host: str, deadline_s: float) -> None:
        self._process, self._events, self._rank, self._host = process, events, rank, host
        self._looks_left = self._looks = math.ceil((deadline_s + SUSPENDED_GRACE_S) / LOOK_S)
        """Counted in looks, because seconds in which this task itself was suspended do not count."""
        self._import_looks_left = math.ceil(IMPORT_S / LOOK_S)
        self._end: RankEnd | None = None
        self.lost_contact = ""
        """What was said when the board could not be reached any more; empty if it could."""

    def wait_for_end(self, board: StatusBoardClient) -> RankEnd:
        """Wait until all ranks are done or one failed; then end this one.

        Returns:
            The end of this rank. None of its processes is left.
        """
        threading.Thread(target=self._ask, args=(board,), daemon=True).start()
        verdict = self._until_verdict(board)
        if verdict.kind == "end" and verdict.severity > 0:
            self._look_for_cause(board)
        if not self.lost_contact:
            with suppress(RingError):  # the board is gone
                board.leave(self._rank)
        if verdict.kind == "finished":
            self._process.let_go()
        else:
            self._process.end()
        return self._end or RankEnd(rank=self._rank, host=self._host, kind="ended")

    def _ask(self, board: StatusBoardClient) -> None:
        try:
            self._events.put(board.wait_for_verdict(self._rank))
        except RingError as error:
            self._events.put(error)

    def _until_verdict(self, board: StatusBoardClient) -> Verdict:
        while True:
            try:
                event = self._events.get(timeout=LOOK_S)
            except queue.Empty:
                self._look_at_the_rank(board)
                continue
            if isinstance(event, Verdict):
                return event
            if isinstance(event, RingError):
                self.lost_contact = str(event)
                self._end = self._end or RankEnd(rank=self._rank, host=self._host, kind="lost", summary=str(event))
                return Verdict(kind="end")
            if not _is_late(event):
                self._note(self._end_of(event), board)

    def _look_at_the_rank(self, board: StatusBoardClient) -> None:
        """Report a rank that is suspended, or imports, for too long. If all ranks do, no other rank can report it."""
        if self._end is not None:
            return
        self._looks_left = self._looks_left - 1 if self._process.is_suspended else self._looks
        if not self._process.has_imported:
            self._import_looks_left -= 1
        if self._looks_left == 0:
            self._note(RankEnd(rank=self._rank, host=self._host, kind="suspended", output_tail=self._process.tail), board)
        elif self._import_looks_left == 0:
            self._note(RankEnd(rank=self._rank, host=self._host, kind="waited", output_tail=self._process.tail, summary=(
                f"rank {self._rank} on {self._host} did not import torch and Horovod within {IMPORT_S:g} s; look at the storage of its "
                "Python environment.")), board)

    def _look_for_cause(self, board: StatusBoardClient) -> None:
        deadline = time.monotonic() + CAUSE_GRACE_S
        while self._end is None and (left := deadline - time.monotonic()) > 0:
            try:
                event = self._events.get(timeout=left)
            except queue.Empty:
                return
            if not isinstance(event, Verdict | RingError) and not _is_late(event):
                self._note(self._end_of(event), board)

    def _note(self, end: RankEnd, board: StatusBoardClient) -> None:
        """Record an end of this rank and report it. A rank that dies after its result counts as failed."""
        if self._end is not None and self._end.failed:
            return
        self._end = end
        with suppress(RingError):  # the board is gone, which the queue reports
            order = board.report(self._rank, severity=self._end.severity if self._end.failed else None)
            self._end = replace(self._end, order=order)

    def _end_of(self, event: Report | int) -> RankEnd:
        report: Report = {"kind": "died", "exit_code": event} if isinstance(event, int) else event
        return RankEnd(rank=self._rank, host=self._host, output_tail=self._process.tail, **report)


def _is_late(event: Report | int) -> bool:
    """Whether it is the answer of a GPU for which the task no longer waits, and not an end of the rank."""
    return not isinstance(event, int) and event["kind"] == "device"
