"""The event stream of a run: JSON lines, one file a rank and generation, merged by whoever reads.

    <run>/events/<generation>-<rank>.jsonl

Each record has ``event`` (its kind), ``time`` (seconds since 1970), ``generation`` and ``rank``. Kinds:

    start       size, host, pid, device, lanes, seed, batch_rows, dataset_url, dataset_version, content_id, manifest_sha256, reduction,
                steps_per_epoch, epochs, epoch, step (where it goes on), resumed (hash of the receipts that it goes on from)
    step        epoch, step, rows (this rank's), global_rows, loss (of the whole step, equal on all ranks), lr,
                data_s, compute_s, comm_s, digest (of this rank's row ids, rowhash.py), offsets and windows (its receipt,
                receipts.py), row_ids (when recorded)
    timeline    epoch, step, and what this worker did in that step, action by action (parallel/schedule_records.py); one step an epoch,
                from the first shard of each worker of a model in stages
    epoch       epoch, seconds, train_loss, rows, exact (the digest equals the split's), validation {loss, auc, ...}; rank 0 only
    checkpoint  epoch, step, seconds, name; rank 0 only
    plan        predicted_s, measured_s (of a step), steps (measured), text (a warning, where they are far apart); rank 0 only, where the
                planner chose the layout
    warning     text; e.g. a damaged checkpoint that was passed over
    end         seconds

Each line ends with ``chain``, a hash over itself and the line before it (receipts.py); ``sparkring audit`` checks them. A last
line that a killed rank left half written is passed over.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sparkring.pipelines.data.receipts import seal
from sparkring.pipelines.data.store import open_store

Record = dict[str, Any]


class EventWriter:
    """Appends one rank's records; each line reaches the file system when it is written."""

    def __init__(self, run_url: str, *, generation: int, rank: int) -> None:
        store = open_store(run_url)
        path = Path(store.path(f"events/{generation}-{rank}.jsonl"))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="ascii", buffering=1)
        self._common = {"generation": generation, "rank": rank}
        self.head = ""
        """Hash of the last record; empty before the first."""

    def write(self, event: str, **values: Any) -> None:
        """Append one record of kind ``event``."""
        record = {"event": event, "time": round(time.time(), 6), **self._common, **values}
        line, self.head = seal(json.dumps(record, separators=(",", ":")), self.head)
        self._file.write(line + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def read_events(run_url: str) -> Iterator[Record]:
    """Yield all records of a run, generation by generation, rank by rank, in the order written."""
    store = open_store(run_url)
    for name in event_files(run_url):
        yield from parse_lines(store.read(f"events/{name}"))


def event_files(run_url: str) -> list[str]:
    """Names of the event files, by generation, then rank."""
    names = open_store(run_url).names("events")
    keys = {name: re.fullmatch(r"(\d+)-(\d+)\.jsonl", name) for name in names}
    return sorted((name for name, key in keys.items() if key), key=lambda name: tuple(map(int, name.removesuffix(".jsonl").split("-"))))


def parse_lines(data: bytes) -> Iterator[Record]:
    """Yield the records of whole lines; a last line without its end is left for later."""
    for line in data.split(b"\n")[:-1]:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError(f"an event line holds a {type(record).__name__}, expected an object")
        yield record


class EventTail:
    """Follows one rank's file while it grows."""

    def __init__(self, run_url: str, *, generation: int, rank: int) -> None:
        self._path = Path(open_store(run_url).path(f"events/{generation}-{rank}.jsonl"))
        self._offset = 0

    def new_records(self) -> list[Record]:
        """The records that have been completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        data = data[:data.rfind(b"\n") + 1]
        self._offset += len(data)
        return list(parse_lines(data))
