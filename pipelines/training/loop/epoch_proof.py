"""One rank's part of the proof that an epoch reads every row exactly once: row digests, receipts, and the hash of its events.

    step         the digest of its rows, and the receipt that goes into its record
    checkpoint   all ranks add their digests and combine the hashes of their last step records (exchange.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparkring.pipelines.data.dataset.row_schema import ROW_ID
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.data.order.receipts import ReceiptMaker
from sparkring.pipelines.data.order.rowhash import add, rows_digest
from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.loop.setup import RankSetup


@dataclass(frozen=True)
class StepProof:
    """The values of a step record that describe the rows of this rank."""

    rows: int = 0
    """0 if another rank writes the receipt."""
    digest: int = 0
    receipt: dict[str, Any] = field(default_factory=dict)


class EpochProof:
    """Collects the digests of an epoch's rows between two exchanges."""

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        self._digest, self._head = 0, ""
        self._receipts = self._make_receipts()

    def restart(self) -> None:
        """Begin a new generation: its hash chain and its receipts start from the restored position."""
        self._digest, self._head = 0, ""
        self._receipts = self._make_receipts()

    def begin_epoch(self) -> None:
        """Count from the epoch's first step, or from the step where it resumes."""
        self._digest = 0

    def add_step(self, position: Position, batch: Batch) -> StepProof:
        """Add the rows of the step at ``position``; returns the values that describe them in its record."""
        if self._receipts is None:
            return StepProof()
        digest = rows_digest(batch.tensors[ROW_ID].numpy())
        self._digest = add([self._digest, digest])
        receipt = self._receipts.step(position.epoch, position.step)
        if self._setup.config.train.record_rows:
            receipt["row_ids"] = batch.tensors[ROW_ID].tolist()
        return StepProof(batch.rows, digest, receipt)

    def seal(self) -> None:
        """Remember the hash of the step record just written: other records may follow before the next exchange."""
        self._head = self._setup.events.head

    def take(self) -> tuple[int, str]:
        """The digest since the last call, and the hash of the last step record."""
        digest, self._digest = self._digest, 0
        return digest, self._head

    def _make_receipts(self) -> ReceiptMaker | None:
        """Make the receipts; None if another rank writes those of this rank's rows."""
        setup, place = self._setup, self._setup.receipt_rank
        return ReceiptMaker(setup.train_loader.order, batch_rows=setup.config.train.step_rows, rank=place.number,
                            num_ranks=place.num_ranks) if place.writes else None
