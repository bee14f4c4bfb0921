"""Declared features (parts of moments, buckets, hashes, decimals): fitted on train rows only, stored, and the same in scoring."""

from __future__ import annotations

import csv
import math
import random
import struct
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sparkring
from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, SourceError, SparkringError
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.spark_jobs.etl import fit as fitting
from sparkring.spark_jobs.etl.fit_numbers import TrainRows
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.export import export
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import ScoreResult, score
from sparkring.spark_jobs.scoring.raw_rows import check_raw
from tests.support import seams
from tests.support.etl_tables import save_untrained
from tests.support.scoring_inputs import inputs_of

pytest_plugins = ["tests.support.spark_sessions"]

COLUMNS = {"id": "bigint", "at": "timestamp", "born": "date", "price": "decimal(12,2)", "km": "double", "agent": "string", "late": "int"}
NEW_YORK = ZoneInfo("America/New_York")
FEATURES: dict[str, Any] = {
    "numeric": ["price"],
    "moments": [
        {"column": "at", "numbers": ["year", "days"], "waves": ["hour", "day_of_week", "month"], "categories": ["day_of_week", "hour"],
         "time_zone": "America/New_York"},
        {"column": "born", "numbers": ["year", "quarter", "month", "week", "day", "day_of_week", "day_of_year"], "waves": ["day_of_year"]}],
    "buckets": [{"column": "km", "quantiles": 4}, {"column": "price", "edges": [10, 50]}],
    "hashed": [{"column": "agent", "ids": 50, "seed": 3}]}


@dataclass(frozen=True)
class Visit:
    """One row of the source; None is written as an empty cell."""

    id: int
    at: datetime | None
    born: date
    price: Decimal | None
    km: float | None
    agent: str | None
    late: int


def visits(count: int = 400) -> list[Visit]:
    """The same visits every time, over both changes of New York's clocks in 2021."""
    chance = random.Random(11)
    return [Visit(id=number, at=None if number % 40 == 7 else datetime(2021, 1, 1, tzinfo=UTC) + timedelta(seconds=79_001 * number),
                  born=date(1950, 1, 1) + timedelta(days=chance.randrange(20_000)),
                  price=None if number % 30 == 4 else Decimal(chance.randrange(1, 10_000)) / 100,
                  km=None if number % 25 == 3 else math.nan if number % 25 == 4 else round(chance.expovariate(0.1), 3),
                  agent=None if number % 20 == 9 else f"agent {chance.randrange(10_000)} \u00fc", late=chance.randrange(2))
            for number in range(count)]


def _config(folder: Path, rows: list[Visit] | None = None, **features: Any) -> Config:
    with (folder / "visits.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for visit in visits() if rows is None else rows:
            writer.writerow(asdict(visit) | {"at": visit.at and visit.at.isoformat()})
    return parse_config({"name": "visits", "workspace": str(folder / "workspace"), "run": "first", "model": {"hidden": [8]}, "prepare": {
        "sources": {"visits": {"path": str(folder / "visits.csv"), "columns": COLUMNS}},
        "query": "SELECT id AS row_id, at, born, price, km, agent, late FROM visits", "label": "late", "features": FEATURES | features,
        "split": {"by": "random"}, "min_category_rows": 2, "num_files": 2}}, origin="test")


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """One prepared version, which tests only read."""
    config = _config(tmp_path_factory.mktemp("derived"))
    prepare(config, spark=spark)
    return config


def _manifest(config: Config) -> Manifest:
    return Dataset(config.dataset).manifest()


def _rows(config: Config, *splits: str) -> dict[int, dict[str, Any]]:
    """Encoded rows by their id; of all splits where none is named."""
    store, manifest = Dataset(config.dataset).store, _manifest(config)
    files = [file for name in splits or tuple(manifest.splits) for file in manifest.splits[name].files]
    return {row["row_id"]: row for row in pa.concat_tables(pq.read_table(store.path(file.path)) for file in files).to_pylist()}


def _raw(spark: SparkSession, config: Config) -> DataFrame:
    """The query's result, as a user would bring it for scoring."""
    frame = spark.read.csv(str(Path(config.workspace).parent / "visits.csv"), header=True)
    return frame.select(*(sf.col(name).cast(kind).alias("row_id" if name == "id" else name) for name, kind in COLUMNS.items()))


def _local(visit: Visit) -> datetime | None:
    return visit.at and visit.at.astimezone(NEW_YORK)


def _wave(value: float, period: float) -> tuple[float, float]:
    return math.sin(2 * math.pi * value / period), math.cos(2 * math.pi * value / period)


def _numbers(visit: Visit) -> dict[str, float | None]:
    """Each number before it is scaled, worked out by Python's calendar and the time zone's own rules."""
    at, born = _local(visit), visit.born
    since_1970 = (at.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / 86_400 if at else None
    hour, weekday, month = (_wave(at.hour, 24), _wave(at.weekday(), 7), _wave(at.month - 1, 12)) if at else ((None, None),) * 3
    place = _wave(born.timetuple().tm_yday - 1, 365.25)
    return {
        "price": None if visit.price is None else float(visit.price), "at_year": at.year if at else None, "at_days": since_1970,
        "at_hour_sin": hour[0], "at_hour_cos": hour[1], "at_day_of_week_sin": weekday[0], "at_day_of_week_cos": weekday[1],
        "at_month_sin": month[0], "at_month_cos": month[1],
        "born_year": born.year, "born_quarter": (born.month + 2) // 3, "born_month": born.month, "born_week": born.isocalendar().week,
        "born_day": born.day, "born_day_of_week": born.isoweekday(), "born_day_of_year": born.timetuple().tm_yday,
        "born_day_of_year_sin": place[0], "born_day_of_year_cos": place[1]}


def test_each_number_is_what_the_calendar_says_scaled_by_what_train_rows_say(made: Config) -> None:
    features = {feature.column: feature for feature in _manifest(made).preprocessing.numeric}
    by_id, train = {visit.id: visit for visit in visits()}, set(_rows(made, "train"))
    assert list(features) == list(_numbers(visits()[0]))
    for name, feature in features.items():
        known = [value for number in train if (value := _numbers(by_id[number])[name]) is not None]
        assert (feature.mean, feature.std) == (pytest.approx(np.mean(known), rel=1e-8, abs=1e-9), pytest.approx(np.std(known), rel=1e-7))
        assert feature.nulls == len(train) - len(known)
    for number, row in _rows(made).items():
        for name, value in _numbers(by_id[number]).items():
            expected = 0.0 if value is None else (value - features[name].mean) / features[name].std
            assert row[name] == pytest.approx(expected, abs=2e-6), (number, name)


def test_the_hours_are_new_york_s_and_not_utc_s(made: Config) -> None:
    hours = {visit.id: local.hour for visit in visits() if (local := _local(visit))}
    shifts = {(visit.at.hour - hours[visit.id]) % 24 for visit in visits() if visit.at}
    assert shifts == {4, 5}  # summer and winter: the rows below tell both from UTC
    by_column = {feature.column: feature.vocabulary for feature in _manifest(made).preprocessing.categorical}
    for number, row in _rows(made).items():
        text = str(hours[number]) if number in hours else ""
        assert row["at_hour"] == (by_column["at_hour"].index(text) + 1 if text in by_column["at_hour"] else 0)
    assert set(by_column["at_day_of_week"]) == set("1234567")


def _quantile_edges(config: Config, rows: set[int]) -> list[float]:
    known = [visit.km for visit in visits() if visit.id in rows and visit.km is not None and not math.isnan(visit.km)]
    return [float(edge) for edge in np.quantile(known, [0.25, 0.5, 0.75])]


def test_buckets_begin_at_quantiles_of_the_train_rows_or_at_the_given_edges(made: Config) -> None:
    km, price = _manifest(made).preprocessing.buckets
    assert (km.column, km.source, km.size, price.column, price.edges) == ("km_bucket", "km", 5, "price_bucket", (10.0, 50.0))
    assert km.edges == pytest.approx(_quantile_edges(made, set(_rows(made, "train"))))
    by_id = {visit.id: visit for visit in visits()}
    for number, row in _rows(made).items():
        visit = by_id[number]
        assert row["km_bucket"] == (0 if visit.km is None or math.isnan(visit.km)
                                    else 1 + int(np.searchsorted(km.edges, visit.km, side="right")))
        assert row["price_bucket"] == (0 if visit.price is None else 1 + (visit.price >= 10) + (visit.price >= 50))
    counts = np.bincount([row["km_bucket"] for row in _rows(made, "train").values()])
    assert counts[1:].max() - counts[1:].min() <= 1


def _hashed(text: str | None, *, ids: int, seed: int) -> int:
    """The id by a library that is not Spark's."""
    if text is None:
        return 0
    key = xxhash.xxh64(struct.pack("<q", seed), seed=42).intdigest()
    number = xxhash.xxh64(text.encode(), seed=key).intdigest()
    return 1 + (number - (number >> 63 << 64)) % (ids - 1)


def test_a_text_s_id_is_what_any_xxh64_library_makes_of_it(made: Config) -> None:
    found = {number: row["agent_hash"] for number, row in _rows(made).items()}
    assert found == {visit.id: _hashed(visit.agent, ids=50, seed=3) for visit in visits()}
    assert found != {visit.id: _hashed(visit.agent, ids=50, seed=4) for visit in visits()}
    assert set(found.values()) == set(range(50))  # all ids are used, none is beyond
    assert _manifest(made).preprocessing.cardinalities()[-1] == 50


def test_held_out_rows_change_nothing_that_was_fitted(made: Config, spark: SparkSession, tmp_path: Path) -> None:
    train = set(_rows(made, "train"))
    strange = [visit if visit.id in train else replace(visit, km=1e6, price=Decimal(999_999), at=datetime(1999, 1, 1, tzinfo=UTC))
               for visit in visits()]
    other = _config(tmp_path, strange)
    prepare(other, spark=spark)
    assert _manifest(other).preprocessing == _manifest(made).preprocessing
    assert _manifest(other).content_id != _manifest(made).content_id
    rows = TrainRows(400)  # the control: all of them
    everything = fitting.fit(_raw(spark, other), other.prepare.features, rows=rows, row_id="row_id", min_category_rows=2)
    assert everything.buckets != _manifest(made).preprocessing.buckets
    assert everything.numeric != _manifest(made).preprocessing.numeric


def test_quantiles_of_many_rows_come_from_a_sample_that_only_their_ids_decide(
        made: Config, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.QUANTILES_SAMPLE_ROWS, 200)

    def fit(frame: DataFrame) -> Preprocessing:
        return fitting.fit(frame, made.prepare.features, rows=TrainRows(400), row_id="row_id", min_category_rows=2)

    edges = [fit(frame).buckets[0].edges for frame in (_raw(spark, made), _raw(spark, made).repartition(5).orderBy(sf.desc("agent")))]
    assert edges[0] == edges[1]
    everything = _quantile_edges(made, {visit.id for visit in visits()})
    assert edges[0] != pytest.approx(everything)
    assert edges[0] == pytest.approx(everything, rel=0.4)


def test_scoring_encodes_raw_rows_by_the_stored_definition_as_prepare_did(made: Config, spark: SparkSession) -> None:
    card = save_untrained(made)
    stored = Preprocessing.model_validate_json(card.preprocessing.model_dump_json())
    assert stored == _manifest(made).preprocessing
    raw = _raw(spark, made)
    encoded = inputs_of(raw, made.run_url)
    assert encoded == {number: {name: row[name] for name in encoded[number]} for number, row in _rows(made).items()}
    test = pq.read_table(Path(score(made, spark=spark).url.removeprefix("file://"))).to_pylist()
    brought = pq.read_table(Path(score(made, spark=spark, frame=raw.drop("late")).url.removeprefix("file://"))).to_pylist()
    probabilities = {row["row_id"]: row["probability"] for row in brought}
    assert len(brought) == 400 > len(test) > 20
    expected = pytest.approx([row["probability"] for row in test], rel=1e-6)  # batches of other sizes round differently in float32
    assert [probabilities[row["row_id"]] for row in test] == expected
    with pytest.raises(SourceError, match=r"have no column at; .*needs its 5 features"):
        score(made, spark=spark, frame=raw.drop("at"))


def _probabilities(scored: ScoreResult) -> dict[int, float]:
    """By row id."""
    table = pq.read_table(Path(scored.url.removeprefix("file://")))
    return dict(zip(table["row_id"].to_pylist(), table["probability"].to_pylist(), strict=True))


def test_an_exported_file_answers_raw_rows_as_scoring_does(made: Config, spark: SparkSession) -> None:
    save_untrained(made)
    raw = _raw(spark, made)
    with pytest.raises(ConfigError, match=r"score.engine is onnx, and there is no \S+/export/model.onnx; run `sparkring export`"):
        score(made, spark=spark, frame=raw, engine="onnx")
    exported = export(made)
    assert exported.beside == ("the query that yields these columns", "the parts of the moments at, born", "the hashes of agent")
    for frame in (raw, None):  # None: the test split, as the dataset stores it
        by_torch, by_file = (_probabilities(score(made, spark=spark, frame=frame, engine=engine)) for engine in ("torch", "onnx"))
        assert len(by_file) > 20
        assert by_file == pytest.approx(by_torch, abs=1e-6)
        assert np.ptp(list(by_file.values())) > 0.05  # the control: rows differ
    save_untrained(made, seed=1)
    with pytest.raises(ConfigError, match=r"was exported from the weights .{16}, and the run's model has .{16}; run `sparkring export`"):
        sparkring.predict(raw, made, engine="onnx")


def test_a_column_is_kept_as_it_is_beside_what_is_made_of_it(spark: SparkSession, tmp_path: Path) -> None:
    rows = [visit for visit in visits() if visit.price is not None and visit.km is not None and not math.isnan(visit.km)]
    config = _config(tmp_path, rows, numeric=[], raw=[{"column": "price", "dtype": "float64"}, {"column": "km", "dtype": "float32"}],
                     hashed=[{"column": "price", "ids": 50, "seed": 3}])
    prepare(config, spark=spark)
    by_id, found = {visit.id: visit for visit in rows}, _rows(config)
    assert set(found) == set(by_id)
    edges = {feature.column: feature.edges for feature in _manifest(config).preprocessing.buckets}
    for number, row in found.items():
        price, km = by_id[number].price, by_id[number].km
        assert price is not None
        assert km is not None
        assert (row["price"], row["km"]) == (pytest.approx(float(price), rel=1e-12), np.float32(km))
        assert row["price_hash"] == _hashed(f"{price:.2f}", ids=50, seed=3)  # of the query's decimal, not of the double that is kept
        assert row["km_bucket"] == 1 + int(np.searchsorted(edges["km_bucket"], km, side="right"))
    save_untrained(config)
    raw = inputs_of(_raw(spark, config), config.run_url)
    assert [(raw[number]["price_hash"], raw[number]["km_bucket"]) for number in found] == [
        (row["price_hash"], row["km_bucket"]) for row in found.values()]


@pytest.mark.parametrize(("column", "kind", "message"), [
    pytest.param("at", "date", "asks for the hour of at, which is a date in the rows to score; bring it as the query that visits was",
                 id="the hour of a date"),
    pytest.param("at", "timestamp_ntz", "in the time zone America/New_York, but it is timestamp_ntz in the rows to score, which is not an",
                 id="the time zone of what is no instant"),
    pytest.param("agent", "double", r"column agent of the rows to score is double, but prepare\.features\.hashed must be string, whole",
                 id="the text of a double"),
    pytest.param("price", "string", r"column price of the rows to score is string, but prepare\.features\.numeric must be double",
                 id="a number's text"),
    pytest.param("km", "array<double>", r"column km of the rows to score is array<double>, but prepare\.features\.buckets must be double",
                 id="the range of an array")])
def test_rows_whose_types_prepare_would_refuse_are_not_scored(made: Config, spark: SparkSession, column: str, kind: str,
                                                              message: str) -> None:
    card, raw = save_untrained(made), _raw(spark, made)
    brought = raw.withColumn(column, sf.lit(None).cast(kind))
    with pytest.raises(SourceError, match=message):
        check_raw(brought, card)
    again = brought.withColumn(column, sf.lit(None).cast(raw.schema[column].dataType))  # the control: the type alone was refused
    check_raw(again, card)


def test_training_and_evaluation_take_the_same_columns(made: Config, spark: SparkSession) -> None:
    dataset, manifest = Dataset(made.dataset), _manifest(made)
    shapes = shapes_of(manifest.task, manifest.preprocessing)
    assert (shapes.num_numeric, len(shapes.cardinalities)) == (18, 5)
    torch.manual_seed(1)
    model = build_model(made.model, shapes)
    loader = Loader(SplitReader(dataset.store, manifest, "train"), LoaderConfig(batch_rows=64, seed=1, lanes=4), rank=0, num_ranks=1)
    rows, by_id = 0, _rows(made, "train")
    for batch in loader.epoch(0):
        numeric, categorical = batch.tensors["numeric"], batch.tensors["categorical"]
        model(numeric=numeric, categorical=categorical).sum().backward()
        first = by_id[int(batch.tensors["row_id"][0])]
        assert categorical[0].tolist() == [first[name] for name in ("at_day_of_week", "at_hour", "km_bucket", "price_bucket", "agent_hash")]
        rows += len(numeric)
    assert rows == manifest.splits["train"].rows
    assert all(parameter.grad is not None for parameter in model.parameters())
    save_untrained(made)
    assert 0 < evaluate(made, spark=spark)["logistic_regression"]["auc"] < 1


@pytest.mark.parametrize(("kind", "features", "message"), [
    pytest.param(SourceError, {"moments": [{"column": "born", "waves": ["hour"]}]},
                 "asks for the hour of born, which is a date in the query; leave that part out", id="the hour of a date"),
    pytest.param(SourceError, {"moments": [{"column": "born", "numbers": ["day"], "time_zone": "Asia/Tokyo"}]},
                 "reads born in the time zone Asia/Tokyo, but it is date in the query, which is not", id="the time zone of a date"),
    pytest.param(SourceError, {"moments": [{"column": "agent", "numbers": ["day"]}]},
                 r"column agent of the query is string, but prepare\.features\.moments must be timestamp; use to_timestamp\(",
                 id="the day of a text"),
    pytest.param(SourceError, {"hashed": [{"column": "km", "ids": 9}]},
                 r"column km of the query is double, but prepare\.features\.hashed must be string, whole", id="the text of a double"),
    pytest.param(SourceError, {"buckets": [{"column": "agent", "quantiles": 9}]},
                 r"column agent of the query is string, but prepare\.features\.buckets must be double", id="the range of a text"),
    pytest.param(ConfigError, {"hashed": [{"column": "late", "ids": 9}]}, "holds late, which is the label", id="the label's hash"),
    pytest.param(ConfigError, {"buckets": [{"column": "kms", "quantiles": 2}]},
                 r"prepare\.features\.buckets names column kms, which the query does not yield; did you mean 'km'", id="no such column"),
])
def test_what_a_column_cannot_give_is_refused(spark: SparkSession, tmp_path: Path, kind: type[SparkringError], features: dict[str, Any],
                                              message: str) -> None:
    with pytest.raises(kind, match=message):
        prepare(_config(tmp_path, visits(20), **features), spark=spark)
    assert not (tmp_path / "workspace").exists()


def test_a_number_that_no_train_row_has_cannot_be_cut_into_quantiles(spark: SparkSession, tmp_path: Path) -> None:
    rows = [replace(visit, km=math.nan) for visit in visits(60)]
    with pytest.raises(SourceError, match=r"feature km is null in all \d+ rows of the train split"):
        prepare(_config(tmp_path, rows), spark=spark)
