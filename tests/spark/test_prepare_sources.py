"""Reading source tables: declared columns with declared types, wherever the bytes are, packed or not."""

from __future__ import annotations

import hashlib
import re
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import SourceConfig, TableSource
from sparkring.errors import SourceError
from sparkring.spark_jobs.etl.sources.tables import data_files, identify, locate, read_table

pytest_plugins = ["tests.support.spark_sessions"]

TEXT = 'id,"a.b",when,extra\n1,"x, ""y""",2020-01-01T05:00:00Z,?\n2,NA,2020-01-02T00:00:00+01:00,?\n'
ROWS = [(1, 'x, "y"', datetime(2020, 1, 1, 5, tzinfo=UTC)), (2, None, datetime(2020, 1, 1, 23, tzinfo=UTC))]
COLUMNS = {"id": "bigint", "a.b": "string", "when": "timestamp"}


def _config(path: Path | str, **settings: Any) -> SourceConfig:
    return SourceConfig(**{"path": str(path), "columns": COLUMNS, "null_value": "NA", **settings})


def _read(spark: SparkSession, config: SourceConfig, cache: Path) -> list[tuple[Any, ...]]:
    frame, rows = read_table(spark, locate("table", config), cache=cache)
    found = [(row[0], row[1], row[2].astimezone(UTC)) for row in frame.orderBy("id").collect()]
    assert rows == len(found)
    return found


def _no_session() -> SparkSession:
    raise AssertionError("a local source needs no session")


def _pack(folder: Path, **files: str) -> Path:
    archive = folder / "table.csv.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in files.items():
            packed.writestr(f"{name}.csv", text)
    return archive


def test_a_csv_is_read_by_its_header_with_quotes_nulls_and_types(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "with space.csv"
    path.write_text(TEXT)
    assert _read(spark, _config(path), tmp_path) == ROWS
    assert _read(spark, _config(path.as_uri()), tmp_path) == ROWS


def test_a_folder_is_one_table_and_hidden_files_are_none_of_it(spark: SparkSession, tmp_path: Path) -> None:
    header, *lines = TEXT.splitlines(keepends=True)
    for number, line in enumerate(lines):
        (tmp_path / f"part-{number}.csv").write_text(header + line)
    before = identify(locate("table", _config(tmp_path)), _no_session)
    (tmp_path / "_SUCCESS").touch()
    assert _read(spark, _config(tmp_path), tmp_path) == ROWS
    assert identify(locate("table", _config(tmp_path)), _no_session) == before
    (tmp_path / "part-2.csv").write_text(header)
    assert identify(locate("table", _config(tmp_path)), _no_session)["sha256"] != before["sha256"]


def test_parquet_columns_are_cast_to_the_declared_types(spark: SparkSession, tmp_path: Path) -> None:
    moments = pa.array([row[2] for row in ROWS], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"id": ["1", "2"], "a.b": [row[1] for row in ROWS], "when": moments}), tmp_path / "table.parquet")
    config = _config(tmp_path / "table.parquet", format="parquet")
    assert _read(spark, config, tmp_path) == ROWS
    with pytest.raises(SourceError, match=r"1 of 2 values of column a\.b are not int, e\.g\. 'x, \"y\"'"):
        read_table(spark, locate("table", config.model_copy(update={"columns": {"a.b": "int"}})), cache=tmp_path)


@pytest.mark.parametrize(("kind", "wanted"), [("date", "double"), ("boolean", "date"), ("binary", "double")])
def test_a_type_that_cannot_become_the_declared_one_is_told(spark: SparkSession, tmp_path: Path, kind: str, wanted: str) -> None:
    spark.sql(f"SELECT CAST(NULL AS {kind}) AS d").write.parquet(str(tmp_path / "table"))
    config = SourceConfig(path=str(tmp_path / "table"), format="parquet", columns={"d": wanted})
    with pytest.raises(SourceError, match=f"column d is {kind} and cannot become {wanted}; correct prepare.sources.table.columns.d"):
        read_table(spark, locate("table", config), cache=tmp_path)


def test_spark_reads_the_files_that_are_listed(spark: SparkSession, tmp_path: Path) -> None:
    header, *lines = TEXT.splitlines(keepends=True)
    for name, line in zip(("elsewhere/b.csv", "table/_part=1/a.csv"), lines, strict=True):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(header + line)
    (tmp_path / "table/_part=2").symlink_to(tmp_path / "elsewhere")
    assert _read(spark, _config(tmp_path / "table"), tmp_path) == ROWS
    assert len(data_files(tmp_path / "table")) == 2


def test_a_fraction_is_no_integer(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"whole": [1.0, 2.0, None], "half": [1.0, 1.5, None]}), tmp_path / "table.parquet")
    config = SourceConfig(path=str(tmp_path / "table.parquet"), format="parquet", columns={"whole": "int"})
    frame, _ = read_table(spark, locate("table", config), cache=tmp_path)
    assert sorted(row.whole or 0 for row in frame.collect()) == [0, 1, 2]
    with pytest.raises(SourceError, match=r"1 of 3 values of column half are not int, e\.g\. '1\.5'"):
        read_table(spark, locate("table", config.model_copy(update={"columns": {"half": "int"}})), cache=tmp_path)


@pytest.mark.parametrize(("kind", "text", "expression", "value"), [
    pytest.param("double", "-10,5", r"double\(replace\(`Preis €`, ',', '\.'\)\)", "-10.5", id="a decimal comma"),
    pytest.param("double", "1.234,56", r"double\(replace\(replace\(`Preis €`, '\.'\), ',', '\.'\)\)", "1234.56", id="points and a comma"),
    pytest.param("double", "0,125", r"double\(replace\(`Preis €`, ',', '\.'\)\)", "0.125", id="0 and three decimals"),
    pytest.param("double", "1.234,567", r"double\(replace\(replace\(`Preis €`, '\.'\), ',', '\.'\)\)", "1234.567", id="three decimals"),
    pytest.param("date", "31.01.2026", r"to_date\(`Preis €`, 'dd\.MM\.yyyy'\)", "2026-01-31", id="a date"),
    pytest.param("timestamp_ntz", "31.01.2026 23:59", r"to_timestamp\(`Preis €`, 'dd\.MM\.yyyy HH:mm'\)", "2026-01-31 23:59:00",
                 id="a time"),
])
def test_a_value_in_another_form_gets_an_expression_for_the_query(
        spark: SparkSession, tmp_path: Path, kind: str, text: str, expression: str, value: str) -> None:
    (tmp_path / "table.csv").write_text(f'Preis €\n"{text}"\n')
    config = SourceConfig(path=str(tmp_path / "table.csv"), columns={"Preis €": kind})
    with pytest.raises(SourceError, match=rf"are not {kind}, e\.g\. '{re.escape(text)}'; .* {expression}(?: in the query)?\.$") as raised:
        read_table(spark, locate("table", config), cache=tmp_path)
    advised = re.search(expression, str(raised.value))
    assert advised is not None
    frame, _ = read_table(spark, locate("table", config.model_copy(update={"columns": {"Preis €": "string"}})), cache=tmp_path)
    assert frame.selectExpr(f"CAST({advised.group()} AS string)").collect()[0][0] == value


@pytest.mark.parametrize(("lines", "message"), [
    pytest.param("1,x,2020-01-01\n", r"line 4 of .*table\.csv has 3 values, and the header has 4: '1,x,2020-01-01'; correct the line",
                 id="short"),
    pytest.param("1,x,2020-01-01,?,!\n", r"line 4 of .*table\.csv has 5 values, and the header has 4: .*; correct the line", id="long"),
    pytest.param('1,"x\ny",2020-01-01,?\n', r"line 4 of .*table\.csv has 2 values, and .*; set multi_line: true", id="broken in quotes")])
def test_a_line_of_a_csv_that_has_not_the_header_s_fields_is_named_and_no_row_of_nulls(
        spark: SparkSession, tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "table.csv").write_text(TEXT + lines)
    config = _config(tmp_path / "table.csv", columns={"a.b": "string"})  # even where the column that is read is there
    with pytest.raises(SourceError, match=f"source table: {message}"):
        read_table(spark, locate("table", config), cache=tmp_path)


def test_a_csv_of_another_separator_is_read_with_it_and_without_it_told(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(TEXT.replace(",", ";").replace("x; ", "x, "))
    assert _read(spark, _config(tmp_path / "table.csv", separator=";"), tmp_path) == ROWS
    with pytest.raises(SourceError, match=r"has one column, 'id;.*;when;extra'; if ; separates its values, set separator: \";\" in"):
        read_table(spark, locate("table", _config(tmp_path / "table.csv")), cache=tmp_path)


@pytest.mark.parametrize("kind", ["orc", "parquet"])
def test_a_file_that_says_its_types_needs_no_columns(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    spark.sql("SELECT 1 AS id, 'x' AS name, CAST(NULL AS DOUBLE) AS km").write.format(kind).save(str(tmp_path / kind))
    frame, rows = read_table(spark, locate("table", SourceConfig(path=str(tmp_path / kind), format=kind)), cache=tmp_path)
    assert (rows, frame.dtypes) == (1, [("id", "int"), ("name", "string"), ("km", "double")])


def test_a_csv_may_have_line_breaks_in_quotes_and_another_encoding_where_the_config_says_so(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('id,name\n1,"x\ny"\n', encoding="utf-8")
    config = SourceConfig(path=str(path), columns={"name": "string"}, multi_line=True)
    assert [row.name for row in read_table(spark, locate("table", config), cache=tmp_path)[0].collect()] == ["x\ny"]
    path.write_text("id,name\n1,Z\N{LATIN SMALL LETTER U WITH DIAERESIS}rich\n", encoding="latin-1")
    with pytest.raises(SourceError, match=r"values of column name hold bytes that are not UTF-8, e\.g\. .*; correct encoding in"):
        read_table(spark, locate("table", config), cache=tmp_path)
    frame, _ = read_table(spark, locate("table", config.model_copy(update={"encoding": "ISO-8859-1"})), cache=tmp_path)
    assert [row.name for row in frame.collect()] == ["Z\N{LATIN SMALL LETTER U WITH DIAERESIS}rich"]
    path.write_text("id,name\n1,Z\N{LATIN SMALL LETTER U WITH DIAERESIS}rich\n2,\N{GURMUKHI LETTER UU}\n", encoding="UTF-16")
    frame, rows = read_table(spark, locate("table", config.model_copy(update={"encoding": "UTF-16", "multi_line": False})), cache=tmp_path)
    assert (rows, [row.name for row in frame.collect()]) == (
        2, ["Z\N{LATIN SMALL LETTER U WITH DIAERESIS}rich", "\N{GURMUKHI LETTER UU}"])  # U+0A0A: the byte of a line end, twice


@pytest.mark.parametrize("kind", ["json", "orc", "parquet"])
def test_a_folder_written_by_spark_is_read_in_each_format(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    (tmp_path / "table.csv").write_text(TEXT)
    frame, _ = read_table(spark, locate("table", _config(tmp_path / "table.csv")), cache=tmp_path)
    frame.withColumn("a.b", sf.col("`a.b`").cast("string")).write.format(kind).save(str(tmp_path / kind))
    assert _read(spark, _config(tmp_path / kind, format=kind), tmp_path) == ROWS


def test_a_line_that_is_no_json_is_an_error_not_a_row_of_nulls(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text('{"id": 1, "a.b": "x", "when": "2020-01-01"}\nid: 2\n')
    with pytest.raises(SourceError, match=r"source table: .*table\.json"):
        read_table(spark, locate("table", _config(tmp_path / "table.json", format="json")), cache=tmp_path)


def test_a_format_whose_jar_is_missing_says_which(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "table.avro").touch()
    with pytest.raises(SourceError, match=r"add to spark\.conf\.spark\.jars\.packages org\.apache\.spark:spark-avro_2\.13"):
        read_table(spark, locate("table", _config(tmp_path / "table.avro", format="avro")), cache=tmp_path)


def test_a_table_of_the_session_is_read_by_name_and_known_by_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(TEXT)
    frame, _ = read_table(spark, locate("table", _config(tmp_path / "table.csv")), cache=tmp_path)
    source = locate("table", TableSource(format="table", table="shop_orders", columns=COLUMNS))

    def facts(rows: DataFrame) -> dict[str, Any]:
        rows.createOrReplaceTempView("shop_orders")
        try:
            return identify(source, lambda: spark)
        finally:
            spark.catalog.dropTempView("shop_orders")

    before = facts(frame)
    assert (before["path"], before["format"]) == ("table shop_orders", "table")
    assert facts(frame.orderBy(sf.desc("id")).repartition(3)) == before
    for other in (frame.union(frame.limit(1)), frame.limit(1), frame.withColumn("id", sf.col("id") + 1)):
        assert facts(other)["rows_digest"] != before["rows_digest"]
    with pytest.raises(SourceError, match=r"source table: Spark cannot read table shop_orders: .*correct prepare\.sources\.table"):
        identify(source, lambda: spark)
    frame.write.option("path", str(tmp_path / "stored")).saveAsTable("shop_orders")
    try:
        found, rows = read_table(spark, source, cache=tmp_path)
        assert (rows, [row[0] for row in found.orderBy("id").collect()]) == (2, [1, 2])
    finally:
        spark.sql("DROP TABLE shop_orders")


def test_an_array_of_a_table_that_rules_out_nulls_is_of_the_declared_type(spark: SparkSession, tmp_path: Path) -> None:
    source = locate("table", TableSource(format="table", table="points", columns={"at": "array<double>", "id": "int"}))
    spark.sql("SELECT 1 AS id, array(1.5D, 2.5D) AS at").createOrReplaceTempView("points")
    try:
        frame, rows = read_table(spark, source, cache=tmp_path)
        assert (rows, frame.collect()[0].at) == (1, [1.5, 2.5])
        with pytest.raises(SourceError, match="column at is array<double> and cannot become array<int>"):
            read_table(spark, locate("table", source.config.model_copy(update={"columns": {"at": "array<int>"}})), cache=tmp_path)
    finally:
        spark.catalog.dropTempView("points")


def test_a_null_and_the_column_it_is_in_are_part_of_a_digest(spark: SparkSession) -> None:
    source = locate("table", TableSource(format="table", table="pairs", columns={"a": "int", "b": "int"}))
    digests = set()
    for row in ("(1, CAST(NULL AS INT))", "(CAST(NULL AS INT), 1)"):
        spark.sql(f"SELECT * FROM VALUES {row} AS t(a, b)").createOrReplaceTempView("pairs")
        digests.add(identify(source, lambda: spark)["rows_digest"])
    spark.catalog.dropTempView("pairs")
    assert len(digests) == 2


def test_a_table_without_declared_columns_has_all_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    source = locate("table", TableSource(format="table", table="pairs"))
    digests = set()
    for row in ("1 AS a, map('x', 1) AS m", "1 AS a, map('x', 2) AS m"):
        spark.sql(f"SELECT {row}").createOrReplaceTempView("pairs")
        digests.add(identify(source, lambda: spark)["rows_digest"])
    frame, rows = read_table(spark, source, cache=tmp_path)
    spark.catalog.dropTempView("pairs")
    assert (len(digests), rows, frame.columns) == (2, 1, ["a", "m"])


def test_a_packed_csv_is_unpacked_once_and_again_when_the_copy_is_damaged(spark: SparkSession, tmp_path: Path) -> None:
    config, cache = _config(_pack(tmp_path, table=TEXT)), tmp_path / "cache"
    assert _read(spark, config, cache) == ROWS
    (copy,) = (path for path in cache.rglob("*") if path.is_file())
    inode = copy.stat().st_ino
    assert _read(spark, config, cache) == ROWS
    assert copy.stat().st_ino == inode
    copy.write_text(TEXT.replace("2020", "2021"))  # as long as before, but not the same bytes
    assert _read(spark, config, cache) == ROWS
    _pack(tmp_path, table=TEXT.replace("2020", "1999"))
    assert _read(spark, config, cache)[0][2].year == 1999
    assert not list(cache.rglob("*.part"))


def test_a_package_of_several_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds 2 files, expected one; unpack it"):
        read_table(spark, locate("table", _config(_pack(tmp_path, a=TEXT, b=TEXT))), cache=tmp_path)


def test_a_local_source_is_known_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(TEXT)
    facts = identify(locate("table", _config(tmp_path / "table.csv")), _no_session)
    assert facts == {"path": str(tmp_path / "table.csv"), "bytes": len(TEXT), "sha256": hashlib.sha256(TEXT.encode()).hexdigest()}


def test_a_source_that_spark_alone_can_reach_is_known_by_its_listing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(TEXT)
    spark.conf.set("fs.viewfs.mounttable.default.link./elsewhere", tmp_path.as_uri())  # a Hadoop file system that is not ours
    source = locate("table", _config("viewfs:///elsewhere/table.csv"))
    assert source.local is None
    facts = identify(source, lambda: spark)
    assert (facts["path"], facts["bytes"], len(facts["listing_sha256"])) == ("viewfs:///elsewhere/table.csv", len(TEXT), 64)
    assert identify(source, lambda: spark) == facts
    assert _read(spark, _config("viewfs:///elsewhere/table.csv"), tmp_path) == ROWS
    (tmp_path / "table.csv").write_text(TEXT + "3,x,2020-01-03T00:00:00Z,?\n")
    assert identify(source, lambda: spark) != facts
