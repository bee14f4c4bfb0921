"""The event stream of a run: JSON lines, one file for each rank and generation, which readers merge.

    <run>/events/<generation>-<rank>.jsonl        (lines.py: in segments, where a store cannot append)

Each record has ``event`` (its kind), ``time`` (seconds since 1970), ``generation`` and ``rank``. Kinds:

    start       size, host, pid, device, lanes, seed, batch_rows, dataset_url, dataset_version, fold (of a version in folds), content_id,
                manifest_sha256, optimizer, peak_lr (for this batch), strategy, wire (train.ring.wire), reduction, steps_per_epoch, epochs,
                epoch, step (where it resumes), resumed (hash of the receipts that it resumes from)
    step        epoch, step, rows (this rank's), global_rows, loss (of the whole step, equal on all ranks; see docs/adr/0011), lr,
                data_s, compute_s, comm_s, digest (of this rank's row ids, rowhash.py), offsets and windows (its receipt,
                receipts.py), row_ids (when recorded), left_out (true if the rows were read but not learned from),
                staleness (of its update; with stale_sync), sent_bytes (of gradients or weights, by this rank; where they are counted)
    quiet       epoch, step (the next one), steps (this rank's since the last quiet point), staleness {updates: count}; with stale_sync
    timeline    epoch, step, and this worker's actions in that step (parallel/schedules/records.py); one step an epoch, from the first
                shard of each worker of a model in stages
    epoch       epoch, seconds, train_loss, rows, exact (the digest equals the split's), validation {loss, auc, ...}; rank 0 only
    stopped_early  epoch (the last one), metric, text; rank 0 only
    checkpoint  epoch, step, seconds, name; rank 0 only
    plan        predicted_s, measured_s (of a step), steps (measured), text (a warning if they differ much); rank 0 only, and only if the
                planner chose the layout
    rollback    epoch, step (which was not finite), steps_done (of the checkpoint), text; the last record of its file: the ranks continue
                as the next generation
    slow        epoch, step, slow_rank (-1: the network), cause (data, compute, network), step_s, own_s, others_s, over: the rank that
                delays the others, or no longer does, each once for a rank and cause (slow_ranks.py); rank 0 only
    warning     text; e.g. a damaged checkpoint that was skipped; for one that could not be written: what ("checkpoint"), count (so far)
    end         seconds

Each line ends with ``chain``, a hash over itself and the line before it (receipts.py); ``sparkring audit`` checks them. A last
line that a killed rank left half written is skipped.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from sparkring.errors import DocumentDamaged
from sparkring.pipelines.data.order.receipts import seal
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.events.lines import LineTail, open_lines, read_segments

Record = dict[str, Any]
FOLDER = "events"
FOLLOW_S, FOLLOW_REMOTE_S = 0.25, 2.0
"""Seconds between two looks at a file that grows: on a disk, and in a store where each look is a request."""


class EventWriter:
    """Writes one rank's records; if storage fails, they wait in memory."""

    def __init__(self, run_url: str, *, generation: int, rank: int) -> None:
        self._store = open_store(run_url)
        self._lines = open_lines(self._store, file_name(generation, rank))
        self._common = {"generation": generation, "rank": rank}
        self.head = ""
        """Hash of the last record; empty before the first."""

    @property
    def generation(self) -> int:
        """The generation of these records."""
        return self._common["generation"]

    def write(self, event: str, **values: Any) -> None:
        """Append one record of kind ``event``."""
        record = {"event": event, "time": round(time.time(), 6), **self._common, **values}
        line, self.head = seal(json.dumps(record, separators=(",", ":")), self.head)
        self._lines.append(line)

    def settle(self) -> None:
        """Put all records so far into storage for good; any thread may call it.

        Raises:
            OSError: some are not stored.
        """
        self._lines.settle()

    def next_generation(self) -> None:
        """Continue in the file of the next generation, with a new chain: this ring starts over without a new launch."""
        self._lines.close()
        self._common["generation"] += 1
        self._lines = open_lines(self._store, file_name(**self._common))
        self.head = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lines.close()


def file_name(generation: int, rank: int) -> str:
    """Name of one rank's event file, in the run folder."""
    return f"{FOLDER}/{generation}-{rank}.jsonl"


def read_events(run_url: str) -> Iterator[Record]:
    """Yield all records of a run, generation by generation, rank by rank, in the order written."""
    store = open_store(run_url)
    for name in event_files(run_url):
        for _, data in read_segments(store, f"{FOLDER}/{name}"):
            yield from parse_lines(data)


def event_files(run_url: str) -> list[str]:
    """Names of the event files, by generation, then rank."""
    names = open_store(run_url).names(FOLDER)
    keys = {name: re.fullmatch(r"(\d+)-(\d+)\.jsonl", name) for name in names}
    return sorted((name for name, key in keys.items() if key), key=lambda name: tuple(map(int, name.removesuffix(".jsonl").split("-"))))


def parse_lines(data: bytes) -> Iterator[Record]:
    """Yield the records of whole lines; a last line without its end is left for later.

    Raises:
        DocumentDamaged: a line is no JSON object.
    """
    for line in data.split(b"\n")[:-1]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _damaged(f"a line that is no JSON ({error})") from None
        if not isinstance(record, dict):
            raise _damaged(f"a line that holds a JSON {type(record).__name__}")
        yield record


def _damaged(found: str) -> DocumentDamaged:
    return DocumentDamaged("the run's event stream", found=found, expected="a JSON object a line",
                           remedy="bring the files in its folder events back from a copy, or train in another workspace")


class EventTail:
    """Follows one rank's file while it grows, and that of the next generation if the ring starts over by itself."""

    def __init__(self, run_url: str, *, generation: int, rank: int) -> None:
        self._store, self._generation, self._rank = open_store(run_url), generation, rank
        self._lines = LineTail(self._store, file_name(generation, rank))
        self.every_s = FOLLOW_S if isinstance(self._store, LocalStore) else FOLLOW_REMOTE_S
        """Seconds to let pass between two calls."""

    def new_records(self) -> list[Record]:
        """The records that have been completed since the last call."""
        records = list(parse_lines(self._lines.new_lines()))
        if records and records[-1]["event"] == "rollback":
            self._generation += 1
            self._lines = LineTail(self._store, file_name(self._generation, self._rank))
            records += self.new_records()
        return records
