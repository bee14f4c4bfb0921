"""The stability index by hand, the table of an error, and that expectations nobody has cost nothing."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from sparkring.conf.schema import ExpectationsConfig
from sparkring.errors import ExpectationResult, ExpectationsNotMet
from sparkring.spark_jobs.etl.drift import stability_index
from sparkring.spark_jobs.etl.expectations import expects_rows


@pytest.mark.parametrize(("before", "now", "expected"), [
    pytest.param([5, 5], [50, 50], 0.0, id="the same shares"),
    pytest.param([50, 50], [25, 75], 0.25 * math.log(2) + 0.25 * math.log(1.5), id="half to a quarter"),
    pytest.param([1, 1], [0, 7], (0.5 - 1e-4) * math.log(0.5 / 1e-4) + 0.5 * math.log(2), id="an empty bin counts as one in ten thousand"),
])
def test_the_stability_index_is_the_sum_over_bins(before: list[int], now: list[int], expected: float) -> None:
    assert stability_index(np.array(before), np.array(now)) == pytest.approx(expected)


def test_the_error_ends_in_a_table_of_all_results() -> None:
    error = ExpectationsNotMet([ExpectationResult("", "at least 9 rows", "8 rows", met=False),
                                ExpectationResult("km", "values at least 0", "all", met=True)])
    assert str(error).splitlines() == [
        "1 of 2 expectations are not met, so nothing was committed; fix the source or the query, or change prepare.expectations:",
        "    column   expected           found",
        "NO  (table)  at least 9 rows    8 rows",
        "ok  km       values at least 0  all"]


@pytest.mark.parametrize(("config", "expected"), [
    pytest.param({}, False, id="nothing"), pytest.param({"min_rows": 1}, True, id="rows"),
    pytest.param({"columns": {"a": {}}}, False, id="an empty column"),
    pytest.param({"columns": {"a": {"max_psi": 1}}}, False, id="drift alone"),
    pytest.param({"columns": {"a": {"max_null_share": 0}}}, True, id="no nulls")])
def test_great_expectations_is_needed_only_where_something_is_expected(config: dict[str, object], expected: bool) -> None:
    assert expects_rows(ExpectationsConfig.model_validate(config)) is expected


def test_great_expectations_is_not_imported_before_it_is_needed() -> None:
    code = "import sys; import sparkring.spark_jobs.prepare; sys.exit('great_expectations' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
