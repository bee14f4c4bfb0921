"""A growing folder becomes dataset versions: each row once, over restarts, replayed batches and late rows."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, ExpectationsNotMet, SourceError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.sources.committed_files import read_committed
from sparkring.spark_jobs.ingest import ingest
from sparkring.spark_jobs.spark.progress import SilentProgress
from tests.support import seams
from tests.support.etl_tables import START, Trip, etl_config, trips, write_trips

pytest_plugins = ["tests.support.spark_sessions"]

SPLIT = {"column": "day", "validation": "10d", "test": "10d"}
EARLY, MIDDLE, LATE = ([trip for trip in trips() if first <= (trip.day - START) // timedelta(days=1) < last]
                       for first, last in ((0, 50), (50, 62), (62, 90)))


def _config(folder: Path, **sections: Any) -> Config:
    made = etl_config(folder, [], split=SPLIT)
    sources = {"trips": {"path": str(folder / "arriving"), "null_value": "NA", "columns": made.prepare.sources["trips"].columns}}
    return made.changed(prepare=made.prepare.changed(sources=sources), **sections)


def _arrive(folder: Path, name: str, rows: Iterable[Trip]) -> None:
    write_trips(folder / f".{name}", rows)
    (folder / "arriving").mkdir(exist_ok=True)
    (folder / f".{name}").rename(folder / "arriving" / name)


def _ids(spark: SparkSession, config: Config) -> dict[str, list[int]]:
    dataset = Dataset(config.dataset)
    return {name: sorted(row[0] for row in read_committed(spark, dataset.store, split.files).select("row_id").collect())
            for name, split in dataset.manifest().splits.items()}


def _all(rows: Iterable[Trip]) -> list[int]:
    return sorted(trip.id * 10 for trip in rows if trip.late is not None)


def test_files_become_versions_each_row_once_over_restarts_and_late_rows(
        spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(tmp_path)
    held_back = EARLY[::5]
    _arrive(tmp_path, "a.csv", [trip for trip in EARLY if trip not in held_back])
    assert ingest(config, spark=spark).versions == (1,)
    assert ingest(config, spark=spark).versions == ()

    _arrive(tmp_path, "b.csv", MIDDLE)
    append = pkgutil.resolve_name(seams.INGEST_PREPARE)

    def and_die(*given: Any, **named: Any) -> None:
        append(*given, **named)
        raise _Killed

    with monkeypatch.context() as patched, pytest.raises(_Killed):
        patched.setattr(seams.INGEST_PREPARE, and_die)
        ingest(config, spark=spark)  # dies between our commit and Spark's note of it
    assert Dataset(config.dataset).versions() == [1, 2]
    _arrive(tmp_path, "c.csv", [*LATE, *held_back])
    assert ingest(config, spark=spark).versions == (3,)  # the batch of b.csv is given again, and adds nothing

    found = _ids(spark, config)
    assert sorted(row for ids in found.values() for row in ids) == _all([*EARLY, *MIDDLE, *LATE])
    rolling = Dataset(config.dataset).manifest().rolling
    assert rolling is not None
    assert found["test"] == _all(trip for trip in trips() if trip.day >= rolling.test_from)
    assert set(_all(held_back)) <= set(found["train"])


class _Killed(Exception):
    """The process ends here."""


@pytest.mark.nightly
def test_another_kind_of_stream_is_taken_by_spark_s_name_for_it(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"value": "bigint", "timestamp": "timestamp"}
    config = etl_config(tmp_path, [], split={"by": "random", "validation_share": 0.2, "test_share": 0.2})
    config = config.changed(
        prepare={"sources": {"ticks": {"format": "table", "table": "unused", "columns": columns}}, "label": "late",
                 "query": "SELECT value AS row_id, CAST(value % 3 = 0 AS INT) AS late, value % 7 AS km FROM ticks",
                 "features": {"numeric": ["km"]}, "split": {"by": "random", "validation_share": 0.2, "test_share": 0.2}},
        ingest={"source": "ticks", "format": "rate-micro-batch",
                "options": {"rowsPerBatch": "200", "numPartitions": "2", "startTimestamp": "1577836800000"}})
    result = ingest(config, spark=spark)
    assert result.versions == (1,)
    assert sorted(row for ids in _ids(spark, config).values() for row in ids) == list(range(200))


def test_rows_that_are_refused_are_given_again_once_they_are_mended(spark: SparkSession, tmp_path: Path) -> None:
    _arrive(tmp_path, "a.csv", EARLY)
    strict = _config(tmp_path).changed(prepare=_config(tmp_path).prepare.changed(expectations={"columns": {"km": {"max": 5}}}))
    with pytest.raises(ExpectationsNotMet):
        ingest(strict, spark=spark)
    assert Dataset(strict.dataset).versions() == []
    assert ingest(_config(tmp_path), spark=spark).versions == (1,)
    with pytest.raises(ConfigError, match=r"ingest\.source=trip is none of prepare\.sources; did you mean 'trips'\?; it has trips"):
        ingest(_config(tmp_path), spark=spark, source="trip")
    with pytest.raises(SourceError, match="source trips: Spark cannot read it as a stream"):
        ingest(_config(tmp_path), spark=spark, format="no-such-format")


def test_a_first_batch_that_is_too_small_is_got_past_once_more_files_are_there(spark: SparkSession, tmp_path: Path) -> None:
    made = _config(tmp_path, ingest={"options": {"maxFilesPerTrigger": "1"}})
    query = "SELECT day, late, km, km * km AS km2, city FROM trips"  # ids are made
    config, notes = made.changed(prepare=made.prepare.changed(query=query)), _Notes()
    _arrive(tmp_path, "a.csv", EARLY[:5])
    with pytest.raises(SourceError, match="split"):
        ingest(config, spark=spark)
    _arrive(tmp_path, "b.csv", EARLY[5:])
    assert ingest(config, spark=spark, progress=notes).versions == (1,)
    assert sum(map(len, _ids(spark, config).values())) == len(_all(EARLY))
    assert any("an exact copy of a row of an earlier batch is not added; set prepare.row_id" in note for note in notes.lines)


class _Notes(SilentProgress):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.nightly
def test_the_view_of_a_batch_is_no_table_of_the_caller_s(spark: SparkSession, tmp_path: Path) -> None:
    _arrive(tmp_path, "a.csv", EARLY)
    spark.range(3).withColumn("mine", sf.lit(1)).createOrReplaceTempView("trips")
    ingest(_config(tmp_path), spark=spark)
    assert spark.table("trips").columns == ["id", "mine"]
    assert not spark.catalog.tableExists("sparkring_ingested")
