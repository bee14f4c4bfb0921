"""Odd values have a defined outcome or are refused in one line: infinities, NaN, numbers beyond float32, constants, nulls, old dates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import Config, FeaturesConfig, NumberPart
from sparkring.errors import DatasetError, NotFinite, SourceError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.preprocessing import MomentPart
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.job.model_files import load_model, save_model
from sparkring.spark_jobs.etl.columns.derive import value_of
from sparkring.spark_jobs.etl.encoding.table_features import encode
from sparkring.spark_jobs.etl.fit import fit
from sparkring.spark_jobs.etl.fit_numbers import TrainRows
from sparkring.spark_jobs.exporting.encoders import TableEncoder
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import predict, score
from sparkring.spark_jobs.scoring.split_rows import SplitRows
from sparkring.spark_jobs.spark.session import result_settings
from tests.support import seams
from tests.support.etl_tables import Trip, etl_config, save_untrained, trips
from tests.support.scoring_inputs import inputs_of

pytest_plugins = ["tests.support.spark_sessions"]

SCALES = ("none", "standard", "robust", "min_max", "log1p")
NUMERIC = [{"column": f"km_{scale}", "scale": scale, "indicator": True} for scale in SCALES]
QUERY = f"SELECT id * 10 AS row_id, day, late, city, {', '.join(f'km AS km_{scale}' for scale in SCALES)} FROM trips"
NO_NUMBERS = {10: math.inf, 11: -math.inf, 12: math.nan}
"""Trip of the train split -> what stands in the place of its kilometres."""
TOO_FAR, FAR = 750, 751
"""Trips of the test split."""
BEYOND, WITHIN = 1e100, 1e30
"""What a float32 cannot hold, however it is scaled here but for the logarithm, and what it can."""


def _with_km(changes: dict[int, float | None]) -> list[Trip]:
    return [replace(trip, km=changes[trip.id]) if trip.id in changes else trip for trip in trips()]


def _config(folder: Path, changes: dict[int, float | None], numeric: list[dict[str, Any]] | None = None) -> Config:
    return etl_config(folder, _with_km(changes), query=QUERY, features={"numeric": numeric or NUMERIC, "categorical": ["city"]})


def _manifest(config: Config) -> Manifest:
    return Dataset(config.dataset).manifest()


def _rows(config: Config) -> dict[int, dict[str, Any]]:
    """All rows of the latest version by the number of their trip."""
    store = Dataset(config.dataset).store
    files = [file for split in _manifest(config).splits.values() for file in split.files]
    return {row["row_id"] // 10: row for row in pa.concat_tables(pq.read_table(store.path(file.path)) for file in files).to_pylist()}


def _without_logarithm(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "row_id" and not name.startswith("km_log1p")}


def _raw(spark: SparkSession, values: list[float | None]) -> DataFrame:
    """Rows as the query yields them, numbered from 0."""
    return spark.createDataFrame([(place, "Bern", *[value] * len(SCALES)) for place, value in enumerate(values)],
                                 f"row_id bigint, city string, {', '.join(f'km_{scale} double' for scale in SCALES)}")


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A prepared version and an untrained model, which tests only read."""
    config = _config(tmp_path_factory.mktemp("odd"), {**NO_NUMBERS, TOO_FAR: BEYOND, FAR: WITHIN})
    prepare(config, spark=spark)
    save_untrained(config)
    return config


def test_what_is_no_finite_number_counts_as_a_null_and_has_no_part_in_what_is_fitted(
        made: Config, spark: SparkSession, tmp_path: Path) -> None:
    nulls = _config(tmp_path, {**dict.fromkeys(NO_NUMBERS), TOO_FAR: None})
    prepare(nulls, spark=spark)
    assert _manifest(made).preprocessing == _manifest(nulls).preprocessing
    rows, expected = _rows(made), _rows(nulls)
    for trip in NO_NUMBERS:
        assert rows[trip] == expected[trip]
    assert _without_logarithm(rows[TOO_FAR]) == _without_logarithm(expected[TOO_FAR])
    assert {rows[trip][f"km_{scale}_is_null"] for trip in (*NO_NUMBERS, TOO_FAR) for scale in SCALES[:4]} == {1.0}
    assert {rows[FAR][f"km_{scale}_is_null"] for scale in SCALES} == {0.0}  # the control: it is far off, yet a number
    assert rows[FAR]["km_none"] == np.float32(WITHIN)
    assert all(math.isfinite(value) for row in rows.values() for value in row.values())


def test_raw_rows_are_encoded_by_the_same_rule(made: Config, spark: SparkSession) -> None:
    raw = _raw(spark, [*NO_NUMBERS.values(), BEYOND, -BEYOND, None, WITHIN])
    save_untrained(made)
    rows = inputs_of(raw, made.run_url)
    assert [_without_logarithm(rows[place]) for place in range(5)] == [_without_logarithm(rows[5])] * 5
    assert rows[3]["km_log1p"] == pytest.approx(math.log1p(BEYOND), rel=1e-6)
    assert rows[6]["km_none"] == np.float32(WITHIN)


def test_an_exported_file_encodes_them_by_the_same_rule(made: Config, spark: SparkSession) -> None:
    values = [*NO_NUMBERS.values(), BEYOND, -BEYOND, None, WITHIN, 0.0, -0.0, -1.0, math.nextafter(-1.0, 0.0), 5e-324, 2.0**53 + 2, 42.5]
    card = save_untrained(made)
    inputs = inputs_of(_raw(spark, values), made.run_url)
    encoded = [inputs[number] for number in sorted(inputs)]
    columns = tuple(f"km_{scale}" for scale in SCALES)
    numbers = torch.tensor([[math.nan if value is None else value] * len(SCALES) for value in values], dtype=torch.float64)
    numeric = TableEncoder(card.preprocessing, columns)(numbers, torch.ones((len(values), 1), dtype=torch.int64))["numeric"].numpy()
    for place, name in enumerate(card.preprocessing.numeric_columns):
        expected = np.array([row[name] for row in encoded], np.float32)
        np.testing.assert_allclose(numeric[:, place], expected, rtol=1.2e-7 if name == "km_log1p" else 0, err_msg=name)
        np.testing.assert_array_equal(np.signbit(numeric[:, place]), np.signbit(expected), err_msg=name)


@pytest.mark.parametrize(("changes", "settings", "message"), [
    pytest.param({10: -BEYOND}, {"scale": "none"}, r"km_none has a train row of -1e\+100, which scaled by none is beyond the 3\.4e38",
                 id="a train row"),
    pytest.param({}, {"scale": "none", "fill": 1e39}, r"km_none is filled with 1e\+39, which scaled by none is beyond", id="a fill"),
    pytest.param({10: 1e60}, {"scale": "robust"}, r"feature km_none has a train row of 1e\+60, which scaled by robust", id="an outlier")])
def test_what_a_float32_cannot_hold_is_refused_where_it_is_fitted(
        spark: SparkSession, tmp_path: Path, changes: dict[int, float | None], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        prepare(_config(tmp_path, changes, [{"column": "km_none", **settings}]), spark=spark)


def _encoded(frame: DataFrame, scale: str) -> list[float]:
    """The column x, fitted on all rows."""
    features = FeaturesConfig.model_validate({"numeric": [{"column": "x", "scale": scale}]})
    fitted = fit(frame, features, rows=TrainRows(frame.count()), row_id="row_id", min_category_rows=1)
    return [row["x"] for row in encode(frame, fitted).orderBy("row_id").collect()]


@pytest.mark.parametrize(("x", "scale", "expected"), [
    pytest.param("123456789012D", "standard", [0.0] * 5, id="a constant of more than nine digits"),
    pytest.param("CAST('12345678901234567890123456789012345678' AS DECIMAL(38, 0))", "standard", [0.0] * 5, id="a constant of 38 digits"),
    pytest.param("CAST('1234567890123456789012345678901234567' || id AS DECIMAL(38, 0))", "min_max", [0.0] * 5,
                 id="numbers that differ in their 38th digit, which a double does not hold"),
    pytest.param("1e15D + id", "standard", [-1, -0.5, 0, 0.5, 1], id="numbers that nine digits do not tell apart"),
    pytest.param("1e15D + id", "min_max", [0, 0.25, 0.5, 0.75, 1], id="their range"),
    pytest.param("CAST(id = 4 AS DOUBLE)", "robust", [0, 0, 0, 0, 1], id="quartiles that are equal"),
    pytest.param("id % 2 = 0", "min_max", [1, 0, 1, 0, 1], id="truths")])
def test_columns_of_hardly_any_spread(spark: SparkSession, x: str, scale: str, expected: list[float]) -> None:
    assert _encoded(spark.range(5).selectExpr("id AS row_id", f"{x} AS x"), scale) == expected


def test_a_network_without_a_finite_answer_gives_no_scores(made: Config, spark: SparkSession, tmp_path: Path) -> None:
    config = made.model_copy(update={"workspace": str(tmp_path), "dataset_url": made.dataset})
    card = save_untrained(config)
    raw = _raw(spark, [1.0, 2.0, math.nan])
    kept = score(config, spark=spark, frame=raw)  # the control
    assert np.isfinite(pq.read_table(Path(kept.url.removeprefix("file://")))["probability"].to_numpy()).all()
    listing = sorted(Path(config.scores).rglob("*"))
    model, _ = load_model(config.run_url)
    save_model(config.run_url, {name: tensor * math.nan for name, tensor in model.state_dict().items()}, card)
    for frame, message in ((raw, "for 3 rows, e.g. that with row_id 0; see"), (None, r"for \d+ rows, e.g. that with row_id 7500; see")):
        with pytest.raises(NotFinite, match=message):
            score(config, spark=spark, frame=frame)
    assert sorted(Path(config.scores).rglob("*")) == listing


def test_rows_to_score_may_have_other_columns_of_any_names_but_each_feature_once(made: Config, spark: SparkSession, tmp_path: Path) -> None:
    config = made.model_copy(update={"workspace": str(tmp_path), "dataset_url": made.dataset})
    save_untrained(config)
    raw = _raw(spark, [1.0, 2.0])
    odd = predict(raw.selectExpr("*", "1 AS note", "2 AS note", "3 AS Note", "4 AS __id_0", "5 AS `a.b``c`"), config)
    assert odd.columns == [*raw.columns, "note", "note", "Note", "__id_0", "a.b`c", "prediction", "probability"]
    assert len(odd.collect()) == 2
    with pytest.raises(SourceError, match=r"have 2 columns km_none and KM_NONE, which Spark does not tell apart; leave all but km_none"):
        predict(raw.selectExpr("*", "1D AS KM_NONE"), config)
    with pytest.raises(DatasetError, match=r"has no split 'holdout'; it has train, validation, test"):
        SplitRows.of(_manifest(made), made.dataset, "holdout")


def test_a_row_without_a_label_is_left_out_whatever_else_it_holds(spark: SparkSession, tmp_path: Path) -> None:
    def rows(change: Callable[[Trip], float | None]) -> list[Trip]:
        return [replace(trip, km=change(trip)) for trip in trips()]

    features = {"features": {"raw": [{"column": "km", "dtype": "float64"}]}}
    config = etl_config(tmp_path / "unlabelled", rows(lambda trip: None if trip.late is None else 1.0), **features)
    assert sum(prepare(config, spark=spark).rows.values()) == sum(trip.late is not None for trip in trips()) == 891
    labelled = etl_config(tmp_path / "labelled", rows(lambda trip: None if trip.id == 10 else 1.0), **features)  # the control
    with pytest.raises(SourceError, match=r"prepare\.query fails: column km holds 1 nulls"):
        prepare(labelled, spark=spark)


def test_a_text_of_no_characters_is_a_value_and_a_null_is_none(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "trips.csv").write_text("id,day,km,city,late\n" + "".join(
        f"{number},2020-0{1 + number // 6 % 3}-15T00:00:00,1.5,{city},{number % 2}\n"
        for number, city in enumerate(['""', "", "NA", '"NA"', "Bern", " "] * 12)), encoding="utf-8")
    splits = {"column": "day", "validation_from": "2020-02-01T00:00:00Z", "test_from": "2020-03-01T00:00:00Z"}
    config = etl_config(tmp_path, split=splits, features={"categorical": ["city"]}, min_category_rows=1)
    prepare(config, spark=spark)
    vocabulary = _manifest(config).preprocessing.categorical[0].vocabulary
    assert sorted(vocabulary) == ["", " ", "Bern"]
    found = {number % 6: (["", *vocabulary][row["city"]], row["city"] == 0) for number, row in _rows(config).items()}
    assert found == {0: ("", False), 1: ("", True), 2: ("", True), 3: ("", True), 4: ("Bern", False), 5: (" ", False)}


BROKEN = "IF(id % 4 = 0, CAST(X'FF' AS STRING), IF(id % 4 = 1, CAST(X'FE' AS STRING), IF(id % 4 = 2, '\N{REPLACEMENT CHARACTER}', 'Bern')))"


def test_bytes_that_are_no_text_are_no_category_and_no_label(spark: SparkSession, tmp_path: Path) -> None:
    query = f"SELECT id * 10 AS row_id, day, {{}} AS late, km, {BROKEN} AS city FROM trips"
    features = {"numeric": ["km"], "categorical": ["city"]}
    config = etl_config(tmp_path / "category", query=query.format("late"), features=features)
    rows = prepare(config, spark=spark).rows
    assert sum(rows.values()) == 891  # two broken texts of one look would have met each other's rows
    assert set(_manifest(config).preprocessing.categorical[0].vocabulary) == {"\N{REPLACEMENT CHARACTER}", "Bern"}
    assert {row["city"] == 0 for trip, row in _rows(config).items() if trip % 4 < 2} == {True}
    assert {row["city"] == 0 for trip, row in _rows(config).items() if trip % 4 > 1} == {False}  # the control
    label = etl_config(tmp_path / "label", query=query.format(BROKEN), features={"numeric": ["km"]}, task="multiclass")
    with pytest.raises(SourceError, match=r"label late holds bytes that are not UTF-8 text in \d+ rows"):
        prepare(label, spark=spark)


def test_a_text_that_is_too_large_a_number_is_no_number(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path)
    source = tmp_path / "trips.csv"
    lines = source.read_text(encoding="utf-8").splitlines()
    for number, km in ((1, "Infinity"), (2, "-inf"), (3, "NaN"), (4, "1e999")):
        cells = lines[number].split(",")
        lines[number] = ",".join([*cells[:2], km, *cells[3:]])
    source.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(SourceError, match=r"source trips: 1 of 900 values of column km are not double, e\.g\. '1e999'; correct its type"):
        prepare(config, spark=spark)


def test_a_query_that_gives_other_rows_each_time_is_refused(
        spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = etl_config(tmp_path)
    monkeypatch.setattr(seams.PREPARE_ENCODE, lambda rows, *args, **kwargs: encode(rows.where("row_id > 50"), *args, **kwargs))
    with pytest.raises(SourceError, match=r"the train split has 588 rows as written and 594 as counted: prepare\.query"):
        prepare(config, spark=spark)
    assert Dataset(config.dataset).versions() == []
    monkeypatch.undo()
    assert prepare(config, spark=spark).version == 1


OLD = [datetime.fromisoformat(f"{text}+00:00") for text in (
    "0001-01-02T03:04:05", "1582-10-10T00:00:00", "1850-01-01T12:00:00", "1883-11-18T16:59:00", "1883-11-18T17:01:00",
    "1899-12-31T23:59:59", "1943-02-01T00:00:00", "1969-12-31T23:59:59", "2021-11-07T06:30:00")]
PARTS: dict[NumberPart, Callable[[datetime], float]] = {
    "year": lambda shown: shown.year, "month": lambda shown: shown.month, "day": lambda shown: shown.day,
    "hour": lambda shown: shown.hour, "minute": lambda shown: shown.minute, "second": lambda shown: shown.second,
    "day_of_week": lambda shown: shown.isoweekday(), "day_of_year": lambda shown: shown.timetuple().tm_yday,
    "week": lambda shown: shown.isocalendar().week}


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu", "Europe/Dublin"])
def test_moments_of_long_ago_are_read_by_the_clocks_and_the_calendar_of_python_s_datetime(spark: SparkSession, zone: str) -> None:
    micros = [(moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) for moment in OLD]
    with result_settings(spark):
        frame = spark.createDataFrame([(number,) for number in micros], "micros bigint").select(
            "micros", sf.timestamp_micros("micros").alias("at"))
        found = frame.select("micros", *(value_of(part, MomentPart(of="at", part=part, time_zone=zone)).alias(part) for part in PARTS))
        rows = {row["micros"]: row.asDict() for row in found.collect()}
    for moment, number in zip(OLD, micros, strict=True):
        shown = moment.astimezone(ZoneInfo(zone))
        assert {part: rows[number][part] for part in PARTS} == {part: of(shown) for part, of in PARTS.items()}, moment
