"""The proof that an epoch read each row exactly once, from the receipts of its steps and the manifest's row counts alone.

It checks three facts. Each lane was read from start to end, step by step, through its recorded windows. The windows of
all lanes cover each row group once. The row ids that were read add up to the digest in the manifest. ``receipts.py``
defines a receipt. Pure: reads no file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkring.errors import ReceiptError
from sparkring.pipelines.data.order.row_order import EpochOrder, Int64s
from sparkring.pipelines.data.order.rowhash import add, from_hex, to_hex

Record = dict[str, Any]


class EpochProof:
    """Checks the step receipts of one epoch against the split; each lane's receipts must come in order of the steps."""

    def __init__(self, order: EpochOrder, *, batch_rows: int) -> None:
        """Prepare for the receipts of the epoch whose row order is ``order``."""
        self._order, self._batch_rows = order, batch_rows
        self._reached = [0] * order.lanes
        self._windows: dict[tuple[int, int], tuple[int, int, int]] = {}
        """(lane, first) -> (group, start, stop)."""
        self.digest = 0
        """Digest of the row ids so far."""

    @property
    def rows(self) -> int:
        """Rows so far."""
        return sum(self._reached)

    def add(self, record: Record, *, rank: int, num_ranks: int, where: str) -> None:
        """Add one rank's receipt of one step.

        Args:
            record: A step record.
            rank: The rank that wrote it.
            num_ranks: Ranks of its generation.
            where: Names the record in errors.
        Raises:
            ReceiptError: it does not continue where its lanes ended, or its own figures contradict each other.
        """
        lanes = self._order.owned_lanes(rank, num_ranks)
        if len(record["offsets"]) != len(lanes):
            raise ReceiptError(f"{where} has offsets of {len(record['offsets'])} lanes, rank {rank} of {num_ranks} owns {len(lanes)}")
        rows = 0
        for lane, offset in zip(lanes, record["offsets"], strict=True):
            begin, end = self._order.lane_slice(lane, record["step"], self._batch_rows)
            if (self._reached[lane], offset) != (begin, end):
                raise ReceiptError(f"{where} reads lane {lane} from row {self._reached[lane]} to {offset}, "
                                   f"the step's rows of it are {begin} to {end}")
            rows += end - begin
            self._reached[lane] = end
        if rows != record["rows"]:
            raise ReceiptError(f"{where} read {record['rows']} rows, its offsets span {rows}")
        for lane, first, group, start, stop in record.get("windows", ()):
            if lane not in lanes or not 0 <= group < len(self._order.group_rows):
                raise ReceiptError(f"{where} enters row group {group} on lane {lane}, which rank {rank} of {num_ranks} cannot read")
            if self._windows.setdefault((lane, first), (group, start, stop)) != (group, start, stop):
                raise ReceiptError(f"{where} enters rows {start} to {stop} of row group {group} at offset {first} of lane {lane}, "
                                   "an earlier receipt says otherwise")
        self.digest = add([self.digest, from_hex(record["digest"])])

    def finish(self, *, rows: int, rows_digest: str) -> None:
        """Prove the whole epoch, after all its receipts were added.

        Args:
            rows: Rows of the split.
            rows_digest: Their digest in the manifest.
        Raises:
            ReceiptError: a row was read twice or not at all.
        """
        epoch = f"epoch {self._order.epoch}"
        if self.rows != rows:
            raise ReceiptError(f"{epoch} read {self.rows} rows, the split has {rows}")
        lane, first, group, start, stop = np.array([(*key, *self._windows[key]) for key in self._windows], dtype=np.int64).reshape(-1, 5).T
        lane_rows = np.array([self._order.lane_rows(number) for number in range(self._order.lanes)], dtype=np.int64)
        for what, torn in (("lane", _not_tiled(lane, first, first + stop - start, sizes=lane_rows)),
                           ("row group", _not_tiled(group, start, stop, sizes=self._order.group_rows))):
            if torn is not None:
                raise ReceiptError(f"{epoch}: the windows do not cover the rows of {what} {torn} once each")
        if to_hex(self.digest) != rows_digest:
            raise ReceiptError(f"{epoch} read row ids with digest {to_hex(self.digest)}, the manifest says {rows_digest}: "
                               "some row was read twice or not at all")


def _not_tiled(keys: Int64s, begins: Int64s, ends: Int64s, *, sizes: Int64s) -> int | None:
    """The least key whose intervals [begin, end) do not cover 0 .. size once each, or None."""
    place = np.lexsort((begins, keys))
    keys, begins, ends = keys[place], begins[place], ends[place]
    follows = np.zeros(len(keys), dtype=bool)
    follows[1:] = keys[1:] == keys[:-1]
    wanted = np.where(follows, np.roll(ends, 1), 0)
    reached = np.zeros_like(sizes)
    np.maximum.at(reached, keys, ends)
    return min({*keys[begins != wanted].tolist(), *np.flatnonzero(reached != sizes).tolist()}, default=None)
