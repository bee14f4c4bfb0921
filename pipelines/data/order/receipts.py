"""Receipts: each rank's record of each step, by which an epoch is proved exact later, and the hash chain over them.

A rank's step record holds its row count, the digest of the row ids that it read (``rowhash.py``), and

    offsets   how far each of its lanes has been read after the step, lanes ascending
    windows   [lane, first, group, start, stop] of each window that a lane entered in the step: rows [start, stop) of a row
              group, which begin at offset ``first`` of the lane (``row_order.py``)

and each line of an event file ends with a hash over itself and the line before. The last hashes of all ranks are
combined at each checkpoint and stored in it; a ring that resumes from it starts with that combined hash:

    generation 0, rank 0   start - step - step - checkpoint - step - (killed)
                  rank 1   start - step - step -------|------ step - (killed)
                                               combined hash, in the checkpoint
    generation 1, rank 0                              |- start - step - step - ...
                  rank 1..                            |- start - step - step - ...

So one hash, in the run's result, covers every record that led to it. Editing, dropping, adding or moving a record
breaks the chain there. It is evidence, not a signature: a person who can rewrite all files of a run can forge another
one.

Pure: no file is touched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sparkring.pipelines.data.order.row_order import EpochOrder, Window

HASH_DIGITS = 32
"""Hex digits of a hash in the chain: 128 bits."""
CHAIN = "chain"
_MARK = f',"{CHAIN}":"'

OrderOfEpoch = Callable[[int], EpochOrder]


def combined(heads: Sequence[str]) -> str:
    """One hash of all ranks' last hashes, rank 0's first."""
    return hashlib.sha256("\n".join(heads).encode()).hexdigest()[:HASH_DIGITS]


def seal(line: str, previous: str) -> tuple[str, str]:
    """Close a JSON object's text with the hash over it and the line before.

    Args:
        line: One JSON object that is not empty, without line end.
        previous: The hash of the line before; empty for the first line.
    Returns:
        The line with ``"chain"`` as its last key, and its hash.
    """
    body = line.removesuffix("}")
    head = _hash(previous, body)
    return f'{body}{_MARK}{head}"}}', head


def check_seal(line: str, previous: str) -> str | None:
    """The hash of a sealed line; None if it is wrong."""
    body, mark, rest = line.rpartition(_MARK)
    head = _hash(previous, body)
    return head if mark and rest == f'{head}"}}' else None


class ReceiptMaker:
    """Records the rows and row groups that one rank takes in each step."""

    def __init__(self, order_of_epoch: OrderOfEpoch, *, batch_rows: int, rank: int, num_ranks: int) -> None:
        self._order_of_epoch, self._batch_rows, self._rank, self._num_ranks = order_of_epoch, batch_rows, rank, num_ranks
        self._epoch = -1
        self._lanes: list[_LaneReceipts] = []

    def step(self, epoch: int, step: int) -> dict[str, Any]:
        """The ``offsets`` of this rank's record of a step, and its ``windows`` if a lane enters one; steps must come
        in order.
        """
        if epoch != self._epoch:
            order = self._order_of_epoch(epoch)
            self._epoch = epoch
            self._lanes = [_LaneReceipts(order, lane, step, self._batch_rows) for lane in order.owned_lanes(self._rank, self._num_ranks)]
        windows = [_plain(window) for lane in self._lanes for window in lane.enter(step)]
        receipt: dict[str, Any] = {"offsets": [lane.offset for lane in self._lanes]}
        return receipt | {"windows": windows} if windows else receipt


class _LaneReceipts:
    """One lane: how far it has been read, and its next window."""

    def __init__(self, order: EpochOrder, lane: int, first_step: int, batch_rows: int) -> None:
        self._order, self._lane, self._batch_rows = order, lane, batch_rows
        self.offset = order.lane_slice(lane, first_step, batch_rows)[0]
        self._coming = order.windows(lane, self.offset)
        self._next = next(self._coming, None)

    def enter(self, step: int) -> Iterator[Window]:
        """Move to the end of ``step``; yields the windows entered on the way."""
        self.offset = self._order.lane_slice(self._lane, step, self._batch_rows)[1]
        while self._next is not None and self._next.first < self.offset:
            yield self._next
            self._next = next(self._coming, None)


def _plain(window: Window) -> list[int]:
    return [window.lane, window.first, window.group, window.start, window.stop]


def _hash(previous: str, body: str) -> str:
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()[:HASH_DIGITS]
