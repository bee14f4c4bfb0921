"""Rank 0's records of all generations of a run: from the beginning, then those that are added."""

from __future__ import annotations

from collections.abc import Iterator

from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.events.lines import LineTail
from sparkring.pipelines.training.events.writer import Record, event_files, file_name, parse_lines


class RankZero:
    """Follows the run at ``run_url``."""

    def __init__(self, run_url: str) -> None:
        self._run_url, self._store = run_url, open_store(run_url)
        self._tails: dict[int, LineTail] = {}
        self._oldest = 0
        """Older generations are read: the ring that wrote them has ended."""

    def new(self) -> Iterator[Record]:
        """Yield the records that have come since the last call, generation by generation.

        Raises:
            DocumentDamaged: a line is no record.
            OSError: the files cannot be listed now.
        """
        begun = [int(name.partition("-")[0]) for name in event_files(self._run_url) if name.endswith("-0.jsonl")]
        for generation in (number for number in begun if number >= self._oldest):
            tail = self._tails.setdefault(generation, LineTail(self._store, file_name(generation, 0)))
            yield from parse_lines(tail.new_lines())
        self._oldest = max(begun, default=0)
