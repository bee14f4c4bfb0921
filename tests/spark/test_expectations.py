"""Expectations: a breach stops the commit, says what was found, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import ExpectationsConfig
from sparkring.errors import ConfigError, ExpectationResult, ExpectationsNotMet
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.drift import ParentVersion, check_drift
from sparkring.spark_jobs.etl.expectations import check_rows
from sparkring.spark_jobs.prepare import prepare
from tests.support.etl_tables import Trip, etl_config, trips

pytest_plugins = ["tests.support.spark_sessions"]

MET: dict[str, Any] = {"min_rows": 800, "max_rows": 891, "columns": {
    "km": {"max_null_share": 0.03, "min": 1, "max": 100}, "late": {"allowed": [0, 1]}, "row_id": {"unique": True, "min": 0},
    "city": {"allowed": ["Bern", "Cork", "Rome", "Oslo"], "max_null_share": 0.3}}}


def _results(spark: SparkSession, folder: Path, expectations: dict[str, Any],
              rows: list[Trip] | None = None, **prepared: Any) -> dict[str, tuple[str, bool]]:
    """Column and expectation -> what was found, of a version that must be refused."""
    with pytest.raises(ExpectationsNotMet) as caught:
        prepare(etl_config(folder, rows, expectations=expectations, **prepared), spark=spark)
    for result in caught.value.results:
        assert isinstance(result, ExpectationResult)
        assert result.found in str(caught.value)
    return {f"{result.column}: {result.expected}": (result.found, result.met) for result in caught.value.results}


def test_rows_as_expected_are_committed(spark: SparkSession, tmp_path: Path) -> None:
    assert prepare(etl_config(tmp_path, expectations=MET), spark=spark).version == 1


def test_each_breach_is_named_with_what_was_found_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    found = _results(spark, tmp_path, {"min_rows": 892, "columns": {
        "km": {"max_null_share": 0.01, "min": 2, "max": 99}, "km2": {"max": 10_000}, "late": {"unique": True},
        "city": {"allowed": ["Bern", "Cork", "Rome"]}, "row_id": {"unique": True}}})
    rows = [trip for trip in trips() if trip.late is not None]
    outside = sum(trip.km is not None and not 2 <= trip.km <= 99 for trip in rows)
    nulls, oslo = sum(trip.km is None for trip in rows), sum(trip.city == "Oslo" for trip in rows)
    assert found[": at least 892 rows"] == ("891 rows", False)
    assert found["km: at most 0.01 null"] == (f"{nulls / 891:.4g} null ({nulls} of 891)", False)
    text, met = found["km: values from 2 to 99"]
    assert (text.startswith(f"{outside} of 891 others, e.g. "), met) == (True, False)
    assert found["km2: values at most 10000"] == ("all", True)
    assert found["late: unique values"] == (f"{2 / 891:.4g} different values a row", False)
    assert found["city: one of Bern, Cork, Rome"] == (f"{oslo} of 891 others, e.g. Oslo", False)
    assert found["row_id: unique values"] == ("1 different values a row", True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["trips.csv"]


def test_a_column_of_nulls_is_unique(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, None), (1, None)], "twice int, never int")
    expected = ExpectationsConfig.model_validate({"columns": {"twice": {"unique": True}, "never": {"unique": True}}})
    assert [(result.found, result.met) for result in check_rows(rows, expected)] == [
        ("0.5 different values a row", False), ("no values", True)]


def test_classes_are_checked_as_the_query_yields_them(spark: SparkSession, tmp_path: Path) -> None:
    split = {"by": "random", "seed": 1}
    query = "SELECT id * 10 AS row_id, km, {label} AS late FROM trips"
    settings: dict[str, Any] = {"task": "multiclass", "features": {"numeric": ["km"]}, "split": split}
    words: dict[str, Any] = {"query": query.format(label="IF(late = 1, 'late', 'on time')"), "expectations": {
        "columns": {"late": {"allowed": ["late", "on time"]}}}}
    assert prepare(etl_config(tmp_path, **settings, **words), spark=spark).version == 1
    appended = [*trips(), *(replace(trip, id=trip.id + 1000) for trip in trips())]
    assert prepare(etl_config(tmp_path, appended, **settings, **words), append=True, spark=spark).version == 2
    numbers: dict[str, Any] = {"query": query.format(label="late + 1"), "expectations": {"columns": {"late": {"min": 1, "max": 1}}}}
    found = _results(spark, tmp_path, numbers.pop("expectations"), **settings, **numbers)
    text, met = found["late: values from 1 to 1"]
    assert (text.endswith("others, e.g. 2"), met) == (True, False)


def test_drift_is_told_against_the_parent_version(spark: SparkSession, tmp_path: Path) -> None:
    limits = {"columns": {"km": {"max_mean_shift": 0.25, "max_psi": 0.1}, "city": {"max_psi": 0.1}, "km2": {"max_psi": 5.0}}}
    config = etl_config(tmp_path, expectations=limits)
    assert prepare(config, spark=spark).version == 1  # there is nothing to drift from
    again = [trip for trip in trips() if trip.id % 10]
    assert prepare(etl_config(tmp_path, again, expectations=limits), spark=spark).version == 2  # a tenth less of the same
    moved = [replace(trip, km=trip.km and trip.km + 20, city="Cork" if trip.city == "Bern" else trip.city) for trip in trips()]
    refused = _results(spark, tmp_path, limits, moved)
    assert {key: met for key, (_, met) in refused.items()} == {
        "km: mean moved by at most 0.25 deviations": False, "km: stability index at most 0.1": False,
        "city: stability index at most 0.1": False, "km2: stability index at most 5": True}
    shift = float(refused["km: mean moved by at most 0.25 deviations"][0].split()[0])
    assert shift == pytest.approx(20 / 28.6, rel=0.05)  # the deviation of 1 to 100, evenly: 99 / sqrt(12)
    assert all(text.endswith("against version 2") for text, _ in refused.values())
    dataset = Dataset(config.dataset)
    assert dataset.versions() == [1, 2]
    assert len(list((tmp_path / "workspace/dataset/data").iterdir())) == 2
    none = spark.createDataFrame([], "km double, km2 double, city string")  # of an append by time, all rows may be test rows
    found = check_drift(none, config.prepare, ParentVersion(dataset.store, dataset.manifest()))
    assert [(result.found, result.met) for result in found] == [("no train rows", True)] * 4


@pytest.mark.parametrize(("columns", "message"), [
    pytest.param({"kms": {"unique": True}}, r"names column kms, which is neither .*did you mean 'km'\?", id="no such column"),
    pytest.param({"city": {"max_mean_shift": 1}},
                 r"columns\.city\.max_mean_shift: this limit is for km, km2, not for city",
                 id="the mean of a text"),
    pytest.param({"late": {"max_psi": 1}}, r"this limit is for city, km, km2, not for late", id="drift of the label"),
    pytest.param({"city": {"min": 3}}, r"city cannot be expected to have values at least 3: ", id="the range of a text"),
])
def test_an_expectation_that_means_nothing_is_refused(spark: SparkSession, tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        prepare(etl_config(tmp_path, expectations={"columns": columns}), spark=spark)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "workspace").exists()
