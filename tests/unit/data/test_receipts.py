"""Receipts: the chain shows any change of a record, and receipts of an exact epoch, and only those, prove it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkring.errors import ReceiptError
from sparkring.pipelines.data.order.receipt_proof import EpochProof
from sparkring.pipelines.data.order.receipts import ReceiptMaker, check_seal, combined, seal
from sparkring.pipelines.data.order.row_order import EpochOrder
from sparkring.pipelines.data.order.rowhash import rows_digest, to_hex

LANES, BATCH = 6, 20
GROUPS = (30, 0, 7, 41, 1, 12)
ROWS = sum(GROUPS)
DIGEST = to_hex(rows_digest(np.arange(ROWS)))


def _order(epoch: int) -> EpochOrder:
    return EpochOrder(np.array(GROUPS, dtype=np.int64), seed=3, epoch=epoch, lanes=LANES)


def _ids(order: EpochOrder, lane: int) -> list[int]:
    """Row ids of a lane in its order, where a row's id is its place in the manifest's order."""
    begins = np.cumsum([0, *GROUPS])
    return [int(begins[window.group] + window.start + row) for window in order.windows(lane) for row in order.shuffle(window)]


def _records(ranks: int, first: int, last: int, *, epoch: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """(rank, step record) of steps first .. last - 1, rank by rank, as ranks that read exactly their rows write them."""
    order = _order(epoch)
    for rank in range(ranks):
        maker = ReceiptMaker(_order, batch_rows=BATCH, rank=rank, num_ranks=ranks)
        for step in range(first, last):
            slices = [(lane, *order.lane_slice(lane, step, BATCH)) for lane in order.owned_lanes(rank, ranks)]
            ids = np.array([row for lane, begin, end in slices for row in _ids(order, lane)[begin:end]], dtype=np.int64)
            yield rank, {"epoch": epoch, "step": step, "rows": len(ids), "digest": to_hex(rows_digest(ids)), **maker.step(epoch, step)}


def _prove(parts: Sequence[tuple[int, Sequence[tuple[int, dict[str, Any]]]]]) -> EpochProof:
    proof = EpochProof(_order(0), batch_rows=BATCH)
    for ranks, records in parts:
        for rank, record in records:
            proof.add(record, rank=rank, num_ranks=ranks, where="the record")
    proof.finish(rows=ROWS, rows_digest=DIGEST)
    return proof


STEPS = _order(0).steps(BATCH)


@settings(max_examples=60)
@given(widths=st.lists(st.integers(1, 9), min_size=1, max_size=4), data=st.data())
def test_the_receipts_of_any_rings_that_follow_each_other_prove_the_epoch(widths: list[int], data: st.DataObject) -> None:
    borders = sorted(data.draw(st.lists(st.integers(0, STEPS), min_size=len(widths) - 1, max_size=len(widths) - 1)))
    ends = [*borders, STEPS]
    parts = [(width, list(_records(width, begin, end))) for width, begin, end in zip(widths, [0, *borders], ends, strict=True)]
    assert _prove(parts).rows == ROWS


def test_a_window_is_written_down_where_a_lane_enters_it_and_after_a_resume_again() -> None:
    windows = [window for _, record in _records(1, 0, STEPS) for window in record.get("windows", ())]
    assert sorted(windows) == sorted([window.lane, window.first, window.group, window.start, window.stop]
                                     for lane in range(LANES) for window in _order(0).windows(lane))
    ((_, first_after_a_resume),) = _records(1, 1, 2)
    assert {window[0] for window in first_after_a_resume["windows"]} == set(range(LANES))


def _changed(records: list[tuple[int, dict[str, Any]]], **changes: Any) -> list[tuple[int, dict[str, Any]]]:
    rank, record = records[2]
    return [*records[:2], (rank, record | changes), *records[3:]]


def test_receipts_that_do_not_add_up_are_refused_with_the_reason() -> None:
    whole = list(_records(2, 0, STEPS))
    _prove([(2, whole)])
    with pytest.raises(ReceiptError, match="reads lane 0 from row"):
        _prove([(2, whole[:2] + whole[3:])])
    with pytest.raises(ReceiptError, match="reads lane 0 from row"):
        _prove([(2, [*whole[:3], whole[2], *whole[3:]])])
    with pytest.raises(ReceiptError, match="its offsets span"):
        _prove([(2, _changed(whole, rows=whole[2][1]["rows"] + 1))])
    with pytest.raises(ReceiptError, match="digest"):
        _prove([(2, _changed(whole, digest=whole[3][1]["digest"]))])
    with pytest.raises(ReceiptError, match="offsets of 1 lanes, rank 0 of 2 owns 3"):
        _prove([(2, _changed(whole, offsets=[4]))])
    with pytest.raises(ReceiptError, match=rf"read \d+ rows, the split has {ROWS}"):
        _prove([(2, [item for item in whole if item[0] == 0])])


@pytest.mark.parametrize(("change", "reason"), [
    pytest.param(lambda window: [*window[:3], window[3], window[4] - 1], "do not cover the rows of lane", id="a row short"),
    pytest.param(lambda window: [*window[:2], 0 if window[2] else 3, *window[3:]], "do not cover the rows of row group",
                 id="of another row group"),
    pytest.param(lambda window: [*window[:2], 99, *window[3:]], "enters row group 99", id="of no row group"),
])
def test_windows_that_do_not_cover_the_rows_once_each_are_refused(change: Any, reason: str) -> None:
    whole = list(_records(2, 0, STEPS))
    first = whole[0][1]
    tampered = [(0, first | {"windows": [change(first["windows"][0]), *first["windows"][1:]]}), *whole[1:]]
    with pytest.raises(ReceiptError, match=reason):
        _prove([(2, tampered)])


def test_a_sealed_line_is_json_and_has_its_hash_only_after_the_line_before() -> None:
    first, head = seal(json.dumps({"event": "start", "loss": float("nan")}), "")
    second, _ = seal('{"event":"step"}', head)
    assert json.loads(first)["chain"] == head
    assert check_seal(first, "") == head
    assert check_seal(second, head) is not None
    assert check_seal(second, "") is None
    assert check_seal(second.replace("step", "stop"), head) is None
    assert check_seal('{"event":"step"}', head) is None


def test_the_combined_hash_tells_ranks_and_their_order_apart() -> None:
    assert len({combined(heads) for heads in (["a", "b"], ["b", "a"], ["a"], ["a", "b", ""], ["ab"])}) == 5
