"""The metric after each epoch of a run while it trains. Each look reads what is new in rank 0's events, and no other rank's."""

from __future__ import annotations

from contextlib import suppress

from sparkring.conf.schema import HeldOutMetric
from sparkring.errors import SparkringError
from sparkring.pipelines.training.events.writer import EventTail, event_files


class Epochs:
    """The epochs of one run, of all its generations."""

    def __init__(self, run_url: str, metric: HeldOutMetric) -> None:
        """Read nothing yet; the run need not have begun."""
        self._run_url, self._metric = run_url, metric
        self._tails: dict[int, EventTail] = {}
        self._found: dict[int, float] = {}

    def so_far(self) -> tuple[float, ...]:
        """The metric after each epoch; those known before while the storage is away."""
        with suppress(OSError, SparkringError):
            for generation in self._generations():
                tail = self._tails.setdefault(generation, EventTail(self._run_url, generation=generation, rank=0))
                for record in tail.new_records():
                    if record["event"] == "epoch" and self._metric in (record["validation"] or {}):
                        self._found[record["epoch"]] = record["validation"][self._metric]
        return tuple(self._found[epoch] for epoch in sorted(self._found))

    def _generations(self) -> list[int]:
        """Those in which rank 0 has begun, in order."""
        names = [name.removesuffix(".jsonl").split("-") for name in event_files(self._run_url)]
        return [int(generation) for generation, rank in names if rank == "0"]
