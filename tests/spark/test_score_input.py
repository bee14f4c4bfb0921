"""Scoring new rows by ``--input``: the query runs on them without a label, portion by portion where it may, and errors say what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, SourceError
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import score
from sparkring.spark_jobs.scoring import portions
from tests.support import seams
from tests.support.command_line import exit_code
from tests.support.configs import write
from tests.support.etl_tables import COLUMNS, etl_config, save_untrained, trips, write_trips

pytest_plugins = ["tests.support.spark_sessions"]

QUERY = "SELECT id * 10 AS row_id, day, CAST(late > 0 AS INT) AS late, km, km * km AS km2, city FROM trips"
NEW = [replace(trip, late=None) for trip in trips()[:60]]
WITHOUT_LABEL = tuple(name for name in COLUMNS if name != "late")


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source and its prepared dataset."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(etl_config(folder, query=QUERY), spark=spark)
    return folder


@pytest.fixture
def config(prepared: Path, tmp_path: Path) -> Config:
    """An untrained model in a workspace of the test's own."""
    made = etl_config(prepared, query=QUERY).model_copy(update={
        "workspace": str(tmp_path / "workspace"), "dataset_url": str(prepared / "workspace/dataset")})
    save_untrained(made)
    return made


def _with(config: Config, **prepare: Any) -> Config:
    return config.model_copy(update={"prepare": config.prepare.model_copy(update=prepare)})


def _rows(url: str) -> dict[int, Any]:
    """Rows of the scores by their row id."""
    return {row["row_id"]: row for row in pq.read_table(Path(url.removeprefix("file://"))).to_pylist()}


def test_a_file_without_the_label_is_scored_as_the_rows_with_it_are(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    write_trips(tmp_path / "new.csv", NEW, columns=WITHOUT_LABEL)
    result = score(config, spark=spark, input=str(tmp_path / "new.csv"))
    found = _rows(result.url)
    assert list(found[0]) == ["row_id", "day", "km", "km2", "city", "prediction", "probability"]
    assert sorted(found) == [trip.id * 10 for trip in NEW]
    write_trips(tmp_path / "labelled.csv", trips()[:60])
    labelled = _rows(score(config, spark=spark, input={"trips": str(tmp_path / "labelled.csv")}).url)
    assert {number: row["late"] for number, row in labelled.items()} == {trip.id * 10: trip.late for trip in trips()[:60]}
    for number, row in found.items():
        assert row["probability"] == pytest.approx(labelled[number]["probability"], rel=1e-6)
    again = score(config, spark=spark, input=str(tmp_path / "new.csv"))
    assert (again.url, again.rows, again.reused) == (result.url, 60, True)
    write_trips(tmp_path / "new.csv", NEW[:50], columns=WITHOUT_LABEL)
    assert score(config, spark=spark, input=str(tmp_path / "new.csv")).rows == 50


def test_a_table_of_the_session_is_scored_too(spark: SparkSession, config: Config) -> None:
    spark.createDataFrame([(1, 5.0, "Bern")], "id int, km double, city string").createOrReplaceTempView("todays_trips")
    rows = _rows(score(_with(config, query=QUERY.replace("day,", "")), spark=spark, input="todays_trips").url)
    assert (rows[10]["km2"], list(rows)) == (25.0, [10])


def test_the_command_line_scores_new_rows(config: Config, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    write_trips(tmp_path / "new.csv", NEW, columns=WITHOUT_LABEL)
    file = write(tmp_path, "trips.yaml", config.model_dump(mode="json"))
    for given, code in ((str(tmp_path / "new.csv"), 0), (f"trips={tmp_path / 'new.csv'}", 0), (f"journeys={tmp_path}", 2)):
        monkeypatch.setattr(sys, "argv", ["sparkring", "score", file, "--input", given, "--json"])
        found = exit_code()
        said = capsys.readouterr()
        assert found == code, said.err
        if code == 0:
            assert json.loads(said.out)["rows"] == 60
            assert "the input lacks what late is made of; left out" in said.err or "reusing" in said.err
        else:
            assert "does not exist" in said.err


@pytest.mark.nightly
def test_a_folder_is_scored_file_by_file_where_the_query_takes_rows_one_by_one(
        spark: SparkSession, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in range(3):
        write_trips(tmp_path / f"new/part-{part}.csv", NEW[part * 20:part * 20 + 20], columns=WITHOUT_LABEL)
    monkeypatch.setattr(seams.PORTIONS_FIRST_MB, 1e-6)
    monkeypatch.setattr(seams.PORTIONS_SHORT_S, 0.0)  # portions of one file each
    wrote: list[int] = []
    add = portions.Draft.add

    def counted(draft: portions.Draft, scored: Any, *, inputs: Any = ()) -> None:
        if len(wrote) == 2:
            wrote.append(-1)
            raise ZeroDivisionError
        add(draft, scored, inputs=inputs)
        wrote.append(len(inputs))

    monkeypatch.setattr(seams.PORTIONS_DRAFT_ADD, counted)
    with pytest.raises(ZeroDivisionError):
        score(config, spark=spark, input=str(tmp_path / "new"))
    result = score(config, spark=spark, input=str(tmp_path / "new"))
    assert (sorted(_rows(result.url)), wrote) == ([trip.id * 10 for trip in NEW], [1, 1, -1, 1])
    assert score(config, spark=spark, input=str(tmp_path / "new")).reused
    wrote[:] = [0, 0, 0]
    counts = "SELECT id * 10 AS row_id, km, count(*) OVER () AS km2, city FROM trips"
    rows = _rows(score(_with(config, query=counts), spark=spark, input=str(tmp_path / "new")).url)
    assert ({row["km2"] for row in rows.values()}, wrote[3:]) == ({60}, [0]), "each row depends on all: the input is scored whole"


@pytest.mark.parametrize(("query", "message"), [
    pytest.param(f"{QUERY} WHERE late IS NOT NULL", r"chooses rows by late \(WHERE or JOIN\), which the input lacks", id="a filter"),
    pytest.param(QUERY.replace("km * km", "km * late"), "the model reads km2, which prepare.query makes of late, and the input has no such",
                 id="a feature"),
    pytest.param(QUERY.replace("km * km", "1 + nothing"), "prepare.query cannot run on the rows to score: .*nothing", id="no column"),
    pytest.param(QUERY.replace("km * km AS km2", "km AS km_2"), "the rows to score have no column km2; did you mean", id="no feature"),
    pytest.param(QUERY.replace("day,", "day, 1 AS Probability,"), "have a column Probability, and a prediction adds another", id="taken"),
    pytest.param(QUERY.replace("day,", "day, 1 AS Day,"), "the query yields 2 columns day, and scores keep all its columns", id="twice")])
def test_what_new_rows_cannot_be_scored_by_is_refused_before_anything_is_written(
        spark: SparkSession, config: Config, tmp_path: Path, query: str, message: str) -> None:
    write_trips(tmp_path / "new.csv", NEW, columns=WITHOUT_LABEL)
    with pytest.raises((ConfigError, SourceError), match=message):
        score(_with(config, query=query), spark=spark, input=str(tmp_path / "new.csv"))
    assert not Path(config.scores).exists()


@pytest.mark.parametrize(("change", "message"), [
    pytest.param(lambda text: text.replace(",Bern", ",Bern,too,many", 1), r"source trips: line 2 of .*new\.csv has 7 values", id="a line"),
    pytest.param(lambda text: "".join(f"{number or ''},{line}\n" for number, line in enumerate(text.splitlines())),
                 r"the header of .*new\.csv has no name for column 1: .*; give each column one name of its own", id="an index of pandas"),
    pytest.param(lambda text: text.replace("\n3,", "\nthree,"), "a value of column id is not bigint: three; correct it", id="a value"),
    pytest.param(lambda text: text.splitlines()[0] + "\n", "", id="no rows are no error")])
def test_what_is_wrong_with_a_value_or_a_line_is_said_and_nothing_is_kept(
        spark: SparkSession, config: Config, tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    new = tmp_path / "new.csv"
    write_trips(new, NEW, columns=WITHOUT_LABEL)
    new.write_text(change(new.read_text()))
    if not message:
        assert score(config, spark=spark, input=str(new)).rows == 0
        return
    with pytest.raises(SourceError, match=message) as raised:
        score(config, spark=spark, input=str(new))
    assert "\n" not in str(raised.value)
    assert not list(Path(config.scores).rglob("*.parquet"))


def test_files_of_a_folder_whose_types_differ_are_said_in_one_sentence(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    folder, (trips_source,) = tmp_path / "days", config.prepare.sources.values()
    folder.mkdir()
    for number, km in enumerate((pa.array([5.0]), pa.array([5]))):
        pq.write_table(pa.table({"id": pa.array([number]), "km": km, "city": ["Bern"]}), folder / f"{number}.parquet")
    daily = _with(config, query=QUERY.replace("day,", ""), sources={"trips": trips_source.model_copy(update={"format": "parquet"})})
    with pytest.raises(SourceError, match=r"source trips: reading \S+days fails: .*\.parquet.*; correct prepare\.sources\.trips\.$"):
        score(daily, spark=spark, input=str(folder))


def test_an_input_says_which_source_it_replaces(config: Config, spark: SparkSession) -> None:
    trips_source = config.prepare.sources["trips"]
    two = _with(config, sources={"trips": trips_source, "more": trips_source})
    with pytest.raises(ConfigError, match=r"reads 2 sources, trips, more; say which one the input replaces, e\.g\. --input trips=new"):
        score(two, spark=spark, input="new")
    with pytest.raises(ConfigError, match=r"reads no source trip; did you mean 'trips'\?; it reads trips, more"):
        score(two, spark=spark, input={"trip": "new"})
    with pytest.raises(SourceError, match=r"new does not exist.*; name a file or folder that exists, or a table of the session"):
        score(two, spark=spark, input={"trips": "new"})
    with pytest.raises(ConfigError, match="both a frame and an input are given"):
        score(two, spark=spark, input="new", frame=spark.range(1))
