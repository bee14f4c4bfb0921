"""What a rank tells the others at a checkpoint comes back as it was packed, whatever its values."""

from __future__ import annotations

import pytest

from sparkring.pipelines.data.order.receipts import HASH_DIGITS
from sparkring.pipelines.training.loop.exchange import RankReport


@pytest.mark.parametrize("report", [
    pytest.param(RankReport(0, "0" * HASH_DIGITS, (0.0, 0.0, 0.0, 0.0)), id="zeros"),
    pytest.param(RankReport((1 << 64) - 1, "0f" * (HASH_DIGITS // 2), (6.0, 0.25, 1e-9, 3.5)), id="the largest digest"),
    pytest.param(RankReport(7, "", (0.0, 0.0, 0.0, 0.0)), id="no step record yet")])
def test_a_report_survives_its_bytes(report: RankReport) -> None:
    assert RankReport.unpack(report.pack()) == report


def test_reports_of_all_ranks_have_the_same_length() -> None:
    lengths = {len(RankReport(digest, "ab" * (HASH_DIGITS // 2), (1.0, 2.0, 3.0, 4.0)).pack()) for digest in (0, 1 << 40)}
    assert lengths == {8 + HASH_DIGITS // 2 + 32}
