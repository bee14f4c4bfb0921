"""``sparkring audit RUN``: prove from a run's events and the manifest alone that each epoch read each row id exactly once.

    <run>/events/*.jsonl           receipts, each line chained to the one before (pipelines/data/order/receipts.py)
    <run>/result.json              the hash that the chain must end in; for an unfinished run, its latest checkpoint has it
    <dataset>/versions/<n>.json    row counts and the digest of the row ids

Steps that were done again after a restart count once: those on the line of checkpoints that leads to the end. Generations may
have different numbers of ranks. Reads no data file and starts neither Spark nor ranks.

The proof covers row ids, not the other values of a row. Ranks verify each page that they decode, if it has a checksum; that the files
are the committed ones byte by byte is for ``sparkring datasets verify``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from typing import Any

from sparkring.errors import CheckpointDamaged, ReceiptError
from sparkring.pipelines.data.dataset.manifest import Manifest, Split
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.order.receipt_proof import EpochProof
from sparkring.pipelines.data.order.receipts import combined
from sparkring.pipelines.data.order.row_order import EpochOrder, Int64s, group_rows
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.documents import read_model
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.sealed import Place, SealedEvents
from sparkring.pipelines.training.events.writer import event_files
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.spark_jobs.spark.progress import SILENT, Bar, Progress

SPLIT = "train"
CONSTANT = ("dataset_url", "dataset_version", "content_id", "manifest_sha256", "seed", "lanes", "batch_rows", "epochs", "steps_per_epoch")
"""Values that all generations of a run must have in common."""

Start = dict[str, Any]
Streams = dict[tuple[int, int], SealedEvents]
"""The streams by (generation, rank)."""


@dataclass(frozen=True)
class GenerationSpan:
    """The steps of one generation that count."""

    generation: int
    num_ranks: int
    """Number of ranks that gave receipts for rows."""
    begins: Place
    """(epoch, step) of its first step."""
    ends: Place
    """(epoch, step) of the step after its last one that counts."""
    dealt: int = 0
    """Ranks to which whole steps were dealt: together they gave one receipt a step. 0: each of ``num_ranks`` gave one."""
    shards: int = 1
    """The distance between those ranks: they are 0, ``shards``, 2 ``shards`` and so on."""

    @property
    def ranks(self) -> range:
        """The ranks that gave receipts."""
        return range(self.dealt) if self.dealt else range(0, self.num_ranks * self.shards, self.shards)


@dataclass(frozen=True)
class AuditResult:
    """The facts that were proved."""

    url: str
    dataset_url: str
    dataset_version: int
    content_id: str
    finished: bool
    """Whether the run is finished; if not, the proof ends at its latest checkpoint."""
    epochs: int
    """Epochs proved to have read each row of the train split exactly once."""
    rows: int
    """Rows of such an epoch."""
    rows_digest: str
    """The digest of their ids, the same as read and in the manifest."""
    page_checksums: bool
    """Whether ``prepare`` wrote the files, which gives each page a checksum to verify; adopted files may lack them."""
    rows_begun: int
    """Rows of the epoch after those, up to the latest checkpoint; none of them came twice."""
    parts: tuple[GenerationSpan, ...]
    records: int
    """Records whose hashes are right."""
    repeated: int
    """Step records among them that do not count, since a later generation did those steps again."""
    receipts: str
    """The hash at the end of the chain."""
    strategy: str = "exact"
    """How the ranks trained together; only with ``exact`` the gradients are those of training on one rank."""
    wire: str = "exact"
    """The type in which gradients travelled between hosts; only with ``exact`` they are those of training on one rank."""


def audit(run_url: str, *, dataset_url: str | None = None, progress: Progress = SILENT) -> AuditResult:
    """Prove a run's epochs exact.

    Args:
        run_url: The run's folder, e.g. ``runs/flights/runs/v1-1f3a9c07``.
        dataset_url: The dataset's address now; default: the address that the run read it from.
        progress: Where to report.
    Returns:
        The facts that were proved.
    Raises:
        ReceiptError: a record was edited, dropped, added or moved, or the receipts do not add up; it is named.
        DocumentDamaged: ``result.json`` exists and cannot be read.
    """
    store = open_store(run_url)
    names = event_files(store.url)
    if not names:
        raise ReceiptError(f"{store.url} holds no events; name the folder of a run, <workspace>/runs/<name>.")
    try:
        with progress.stage("audit", total=len(names)) as bar:
            return _audit(store, names, dataset_url, bar)
    except (KeyError, TypeError, AttributeError) as error:  # the hashes are right, but the record is not one of ours
        raise ReceiptError(f"{store.url} holds a record that this release cannot read ({type(error).__name__}: {error}); "
                           "audit it with the release that made it.") from error


def _audit(store: Store, names: Sequence[str], dataset_url: str | None, bar: Bar) -> AuditResult:
    streams: Streams = {}
    for done, name in enumerate(names):
        bar.update(done, total=len(names), text="checking hashes")
        generation, rank = map(int, name.removesuffix(".jsonl").split("-"))
        streams[generation, rank] = SealedEvents(store, name)
    place, receipts, finished = _end(store)
    start = _common_start(store, streams)
    parts = _line(store, streams, place, receipts)
    manifest = _manifest(start, dataset_url or start["dataset_url"])
    orders = _orders(start, manifest)
    split = manifest.splits[SPLIT]
    rows_begun = _prove(streams, parts, orders, split, bar)
    counted = sum(part.num_ranks * (orders.steps(part.ends) - orders.steps(part.begins)) for part in parts)
    return AuditResult(
        url=store.url, dataset_url=dataset_url or start["dataset_url"], dataset_version=manifest.version, content_id=manifest.content_id,
        finished=finished, epochs=place[0], rows=split.rows, rows_digest=split.rows_digest, rows_begun=rows_begun, parts=tuple(parts),
        page_checksums="adopted" not in manifest.recipe,
        records=sum(stream.records for stream in streams.values()),
        repeated=sum(len(stream.places) for (_, rank), stream in streams.items() if _gives_receipts(stream, rank)) - counted,
        receipts=receipts, strategy=start.get("strategy", "exact"), wire=start.get("wire", "exact"))


def _end(store: Store) -> tuple[Place, str, bool]:
    """The place that the run has reached, the hash of its receipts there, and whether it is done."""
    latest = _latest_position(Checkpoints(store.url))
    if latest is None:
        raise ReceiptError(f"{store.url} has no checkpoint yet, so none of its steps counts; audit it after the first one.")
    try:
        summary = read_model(store, "result.json", TrainSummary, expected="the summary of a run",
                             remedy="bring it back from a copy, or delete it to have the run proved up to its latest checkpoint")
    except FileNotFoundError:
        return (latest.epoch, latest.step), latest.receipts, False
    if summary.receipts != latest.receipts:
        raise ReceiptError(f"{store.url}: result.json ends in receipts {summary.receipts or 'none'}, the latest checkpoint in "
                           f"{latest.receipts or 'none'}; one of them was edited, or the run was made by a release without receipts.")
    return (latest.epoch, latest.step), latest.receipts, True


def _latest_position(checkpoints: Checkpoints) -> Position | None:
    """The position of the latest checkpoint that counts. Those that training skips (damaged, committed late) are skipped here too."""
    for number in reversed(checkpoints.numbers()):
        with suppress(CheckpointDamaged):
            return checkpoints.document(number).position
    return None


def _common_start(store: Store, streams: Streams) -> Start:
    """The values that all start records share."""
    starts = [(stream.name, stream.start) for stream in streams.values() if stream.start]
    if not starts:
        raise ReceiptError(f"{store.url} holds no start record; no rank ever began.")
    first_name, first = starts[0]
    for name, start in starts:
        for key in CONSTANT:
            if key not in start or start[key] != first.get(key):
                raise ReceiptError(f"{name} of {store.url} starts with {key} {start.get(key)}, {first_name} with {first.get(key)}; "
                                   "a run keeps it from its first start to its end.")
    return first


def _line(store: Store, streams: Streams, place: Place, receipts: str) -> list[GenerationSpan]:
    """The generations that led to ``place``, first to last, each with those of its steps that count."""
    parts: list[GenerationSpan] = []
    generation = max(number for number, _ in streams) + 1
    while receipts:
        found = next(((number, ranks) for number in range(generation - 1, -1, -1)
                      if (ranks := _ring(streams, number)) and _combined(ranks, place) == receipts), None)
        if found is None:
            raise ReceiptError(f"{store.url}: no generation's receipts up to epoch {place[0]} step {place[1]} end in {receipts}, from "
                               "which the run resumed or with which it ended; event files are gone, cut short or exchanged.")
        generation, ranks = found
        starts = [stream.start or {} for stream in ranks]
        begins, receipts_before = _place(starts[0]), starts[0]["resumed"]
        if any((_place(start), start["resumed"]) != (begins, receipts_before) for start in starts):
            raise ReceiptError(f"{store.url}: the ranks of generation {generation} do not start at the same place.")
        parts.append(GenerationSpan(generation, starts[0].get("readers", len(ranks)), begins, place, shards=starts[0].get("shards", 1),
                                    dealt=len(ranks) if _is_dealt(starts[0]) else 0))
        place, receipts = begins, receipts_before
    if place != (0, 0):
        raise ReceiptError(f"{store.url}: the start record at epoch {place[0]} step {place[1]} names no receipts of the steps before it; "
                           "that was made by a release without receipts, or edited.")
    return parts[::-1]


def _ring(streams: Streams, generation: int) -> list[SealedEvents]:
    """The streams of all ranks of a generation by rank; empty if one is missing or has no start."""
    first = streams.get((generation, 0))
    if first is None or first.start is None:
        return []
    ranks = [streams.get((generation, rank)) for rank in range(first.start["size"])]
    return [stream for stream in ranks if stream and stream.start] if all(stream and stream.start for stream in ranks) else []


def _gives_receipts(stream: SealedEvents, rank: int) -> bool:
    """Whether this rank's steps hold receipts: the first shards of the first stage's replicas do."""
    start = stream.start or {}
    if _is_dealt(start):
        return True
    shards, readers = int(start.get("shards", 1)), int(start.get("readers", rank + 1))
    return rank % shards == 0 and rank // shards < readers


def _is_dealt(start: Start) -> bool:
    """Whether each step was done by one rank, as a whole."""
    return start.get("strategy") == "stale_sync"


def _combined(ranks: Sequence[SealedEvents], place: Place) -> str | None:
    heads = [stream.head_before(place) for stream in ranks]
    return combined([head for head in heads if head]) if all(heads) else None


@dataclass(frozen=True)
class _Orders:
    """The row orders of a run's epochs."""

    group_rows: Int64s
    seed: int
    lanes: int
    batch_rows: int
    steps_per_epoch: int

    def of(self, epoch: int) -> EpochOrder:
        return EpochOrder(self.group_rows, self.seed, epoch, self.lanes)

    def after(self, place: Place) -> Place:
        epoch, step = place
        return (epoch, step + 1) if step + 1 < self.steps_per_epoch else (epoch + 1, 0)

    def steps(self, place: Place) -> int:
        """Steps from the run's beginning to ``place``."""
        return place[0] * self.steps_per_epoch + place[1]


def _orders(start: Start, manifest: Manifest) -> _Orders:
    rows = group_rows([file.row_groups for file in manifest.splits[SPLIT].files])
    steps = EpochOrder(rows, start["seed"], 0, start["lanes"]).steps(start["batch_rows"])
    return _Orders(rows, start["seed"], start["lanes"], start["batch_rows"], steps)


def _manifest(start: Start, dataset_url: str) -> Manifest:
    """The manifest of the dataset version, if it is the one that the run read."""
    dataset, version = Dataset(dataset_url), start["dataset_version"]
    manifest = dataset.manifest(version, fold=start.get("fold"), moved="name its new address with --dataset")
    found = dataset.manifest_sha256(version)
    if found != start["manifest_sha256"]:
        raise ReceiptError(f"version {version} of {dataset.url} has a manifest with SHA-256 {found}, the run read one with "
                           f"{start['manifest_sha256']}; name the dataset that it was trained on with --dataset.")
    return manifest


def _prove(streams: Streams, parts: Sequence[GenerationSpan], orders: _Orders, split: Split, bar: Bar) -> int:
    """Prove each epoch that the parts finish, one after the other; returns the number of rows so far of an unfinished one."""
    proof = EpochProof(orders.of(0), batch_rows=orders.batch_rows)
    epoch = 0
    for part in parts:
        found = [streams[part.generation, rank] for rank in part.ranks]
        ranks = [_CountedSteps(group, part, orders) for group in ([found] if part.dealt else [[stream] for stream in found])]
        while (epoch, 0) < part.ends:
            bar.update(len(streams), text=f"adding up epoch {epoch + 1}")
            for rank, steps in enumerate(ranks):
                for where, record in steps.until(min((epoch + 1, 0), part.ends)):
                    proof.add(record, rank=rank, num_ranks=part.num_ranks, where=where)
            if part.ends < (epoch + 1, 0):
                break  # the next part continues the same epoch
            proof.finish(rows=split.rows, rows_digest=split.rows_digest)
            epoch += 1
            proof = EpochProof(orders.of(epoch), batch_rows=orders.batch_rows)
    return proof.rows


class _CountedSteps:
    """The step records of one rank, or of all to which steps were dealt, that count, in order and without a gap."""

    def __init__(self, streams: Sequence[SealedEvents], part: GenerationSpan, orders: _Orders) -> None:
        self._names, self._orders = " and ".join(stream.name for stream in streams), orders
        self._records = merge(*(stream.steps() for stream in streams), key=lambda found: (found[1]["epoch"], found[1]["step"]))
        self._wanted = part.begins

    def until(self, end: Place) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each record before ``end`` with its file and line."""
        while self._wanted < end:
            where, record = next(self._records, ("", {}))
            if not record:
                raise ReceiptError(f"{self._names} ends before epoch {self._wanted[0]} step {self._wanted[1]}, which counts.")
            if (record["epoch"], record["step"]) != self._wanted:
                raise ReceiptError(f"{where} holds epoch {record['epoch']} step {record['step']}, "
                                   f"expected epoch {self._wanted[0]} step {self._wanted[1]}.")
            self._wanted = self._orders.after(self._wanted)
            yield where, record


def _place(start: Start) -> Place:
    return start["epoch"], start["step"]
