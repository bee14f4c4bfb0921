"""The ranks' exchange at a checkpoint and at an epoch's end, in one round: digests, hashes, and seconds of steps."""

from __future__ import annotations

from dataclasses import asdict
from typing import NamedTuple, Self

import torch

from sparkring.pipelines.data.order.receipts import combined
from sparkring.pipelines.data.order.rowhash import add, from_hex, to_hex
from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.events.slow_ranks import PACKED, SlowRanks, StepSeconds, pack, unpack
from sparkring.pipelines.training.loop.epoch_proof import EpochProof
from sparkring.pipelines.training.loop.setup import RankSetup

DIGEST_BYTES = 8


class RankReport(NamedTuple):
    """One rank's report to the others; equally many bytes on every rank."""

    digest: int
    """Digest of its rows since the last exchange."""
    head: str
    """Hash of its last step record, in hex."""
    seconds: tuple[float, ...]
    """Its ``StepSeconds``."""

    def pack(self) -> bytes:
        """The report as bytes: digest, hash, seconds."""
        return self.digest.to_bytes(DIGEST_BYTES, "big") + bytes.fromhex(self.head) + pack(self.seconds)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The inverse of ``pack``."""
        return cls(int.from_bytes(data[:DIGEST_BYTES], "big"), data[DIGEST_BYTES:-PACKED].hex(), unpack(data[-PACKED:]))


class PositionExchange:
    """Completes a position with the digests and hashes of all ranks; on rank 0 it also reports slow ranks."""

    def __init__(self, setup: RankSetup, proof: EpochProof) -> None:
        self._communicator, self._events, self._is_first = setup.communicator, setup.events, setup.is_first
        self._proof = proof
        self._seconds, self._slow = StepSeconds(), SlowRanks(setup.equal_ranks())

    def add_step(self, data_s: float, compute_s: float, comm_s: float) -> None:
        """Count the seconds of one step."""
        self._seconds.add(data_s, compute_s, comm_s)

    def complete(self, position: Position) -> Position:
        """Add all ranks' row digests and the hash of their receipts; every rank calls this after the same step."""
        reports = self._gather(RankReport(*self._proof.take(), self._seconds.take()))
        if self._is_first:
            for change in self._slow.update([report.seconds for report in reports]):
                self._events.write("slow", epoch=position.epoch, step=position.step, **asdict(change))
        digest = add([from_hex(position.rows_digest), *(report.digest for report in reports)])
        return position.model_copy(update={
            "rows_digest": to_hex(digest), "receipts": combined([report.head for report in reports])})

    def _gather(self, mine: RankReport) -> list[RankReport]:
        rows = self._communicator.gather(torch.tensor([list(mine.pack())], dtype=torch.uint8), name="position")
        return [RankReport.unpack(bytes(row.tolist())) for row in rows]
