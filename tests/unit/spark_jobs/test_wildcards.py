"""Wildcards among features stand for columns of the query."""

from __future__ import annotations

from typing import Any

import pytest

from sparkring.conf.schema import FeaturesConfig
from sparkring.errors import ConfigError
from sparkring.spark_jobs.etl.columns.wildcards import expanded

COLUMNS = ["row_id", "px_1", "px_0", "late", "px_10", "city", "c_a", "c_b"]
KEPT = ("row_id", "late", "day")


def _expanded(**features: Any) -> FeaturesConfig:
    return expanded(FeaturesConfig.model_validate(features), COLUMNS, kept=KEPT)


def test_a_wildcard_stands_for_the_columns_that_fit_in_the_query_s_order() -> None:
    features = _expanded(numeric=["px_*"], categorical=["city", "c_?"])
    assert features.numbers == ("px_1", "px_0", "px_10")
    assert features.categorical == ("city", "c_a", "c_b")


def test_row_id_label_and_split_column_fit_no_wildcard() -> None:
    assert _expanded(numeric=["*"]).numbers == ("px_1", "px_0", "px_10", "city", "c_a", "c_b")


def test_a_wildcard_s_columns_share_its_settings_but_for_those_that_are_named_beside_it() -> None:
    features = _expanded(numeric=[{"column": "px_*", "scale": "none"}, {"column": "px_0", "scale": "log1p"}])
    assert {number.column: number.scale for number in features.numeric} == {"px_1": "none", "px_10": "none", "px_0": "log1p"}


def test_features_without_wildcards_stay() -> None:
    features = FeaturesConfig.model_validate({"numeric": ["px_1", "nowhere"], "raw": [{"column": "city", "dtype": "int8"}]})
    assert expanded(features, COLUMNS, kept=KEPT) == features  # whether the query yields them is checked elsewhere


@pytest.mark.parametrize(("features", "message"), [
    pytest.param({"numeric": ["py_*"]}, r"prepare\.features\.numeric: no column of the query fits py_\*; it yields px_1, px_0, px_10, "
                 "city, c_a, c_b beside", id="nothing fits"),
    pytest.param({"categorical": ["lat*"]}, r"prepare\.features\.categorical: no column of the query fits lat\*", id="only the label fits"),
    pytest.param({"numeric": ["px_*"], "categorical": ["px_0"]},
                 r"column px_0 is numeric \(px_\*\) and categorical; name it once, or narrow the wildcard", id="two kinds"),
    pytest.param({"numeric": ["px_1*", "px_?0"]}, r"column px_10 is numeric \(px_1\*\) and numeric \(px_\?0\)", id="two wildcards"),
    pytest.param({"numeric": ["c*"], "raw": [{"column": "city", "dtype": "int8"}]}, r"column city is numeric \(c\*\) and raw", id="raw")])
def test_what_a_wildcard_cannot_stand_for_is_said(features: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _expanded(**features)


def test_all_problems_are_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"^3 problems were found; correct all of them:\n") as raised:
        _expanded(numeric=["py_*", "px_*"], categorical=["pz_*", "px_10"])
    assert [word for word in ("py_*", "pz_*", "px_10") if word in str(raised.value)] == ["py_*", "pz_*", "px_10"]
