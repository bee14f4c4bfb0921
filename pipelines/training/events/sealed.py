"""One event file whose hash chain was checked: its start record, its step records, and its hash at any step.

The bytes are read twice rather than kept: once to check the chain, once for the receipts of the steps that count.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from sparkring.errors import ReceiptError
from sparkring.pipelines.data.order.receipts import CHAIN, check_seal
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.training.events.lines import read_segments

Place = tuple[int, int]
"""(epoch, step)."""


class SealedEvents:
    """The records of one rank and generation."""

    def __init__(self, store: Store, name: str) -> None:
        """Read ``events/<name>`` and check every line's hash.

        Raises:
            ReceiptError: a line was edited, dropped, added or moved; it is named.
        """
        self._store, self.name = store, f"events/{name}"
        self.records = 0
        self.start: dict[str, Any] | None = None
        """The start record; None if the rank ended before it."""
        self.places: list[Place] = []
        """The step records' places, ascending."""
        self._ends: list[tuple[Place, str]] = []
        """The places of step records, and of the last steps before quiet points; with the hash up to there."""
        head = ""
        for where, line in self._lines():
            found = check_seal(line, head)
            if found is None and f'"{CHAIN}":"' not in line:
                raise ReceiptError(f"{where} has no hash: it was made by a release without receipts, or by something else.")
            if found is None:
                raise ReceiptError(f"{where} does not have the hash that its text and the line before it give: "
                                   f"{_what(line)} was edited, or one was dropped, added or moved here. Restore the file from a copy.")
            head = found
            self._take(where, json.loads(line), head)

    def head_before(self, place: Place) -> str | None:
        """The hash of the last step record or quiet point before ``place``; None if there is none."""
        index = bisect_left(self._ends, place, key=itemgetter(0))
        return self._ends[index - 1][1] if index else None

    def steps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each step record with its file and line."""
        for where, line in self._lines():
            record = json.loads(line)
            if record["event"] == "step":
                yield where, record

    def _take(self, where: str, record: dict[str, Any], head: str) -> None:
        self.records += 1
        if record["event"] == "start":
            if self.start is not None:
                raise ReceiptError(f"{where} is a second start in one file; each start of a ring writes files of its own.")
            self.start = record
        elif record["event"] == "step":
            place = (record["epoch"], record["step"])
            if self.places and place <= self.places[-1]:
                raise ReceiptError(f"{where} is step {place} after step {self.places[-1]}; steps of a generation ascend.")
            self.places.append(place)
            self._ends.append((place, head))
        elif record["event"] == "quiet":
            last = (record["epoch"], record["step"] - 1)
            if self._ends and self._ends[-1][0] == last:
                self._ends.pop()
            self._ends.append((last, head))

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Each whole line with its file and number. A last line that a killed rank left half written is skipped."""
        for name, data in read_segments(self._store, self.name):
            path = self._store.path(name)
            for number, line in enumerate(data.split(b"\n")[:-1], start=1):
                yield f"{path} line {number}", line.decode("ascii", errors="replace")


def _what(line: str) -> str:
    try:
        record = json.loads(line)
        named = [f"{key} {record[key]}" for key in ("epoch", "step") if key in record]
        return f"the {record['event']} record{' of ' if named else ''}{' '.join(named)}"
    except (ValueError, TypeError, KeyError):
        return "the record"
