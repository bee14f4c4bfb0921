"""The ways of different versions of Spark come to the same: each way of Spark 3.5 beside the newer one, where Spark has both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, DecimalType, DoubleType, IntegerType, StringType, TimestampType

from sparkring.conf.schema import SourceConfig
from sparkring.spark_jobs.etl.sources.tables import locate, open_raw
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS
from sparkring.spark_jobs.spark.session import RESULT_SETTINGS, result_settings
from sparkring.spark_jobs.spark.versions.arrow_frames import frame_of, frame_of_rows, table_of, table_of_batches
from sparkring.spark_jobs.spark.versions.casts import ddl_of, try_cast, try_cast_by_sql, type_of
from sparkring.spark_jobs.spark.versions.groups import apply_by_pandas, apply_to_groups
from sparkring.spark_jobs.spark.versions.text import is_valid_utf8, is_valid_utf8_by_java
from sparkring.spark_jobs.spark.versions.threads import inheriting_thread

pytest_plugins = ["tests.support.spark_sessions"]

TABLE = pa.table({"name": pa.array(["a", None, "\u00e9\U0001f600", ""], pa.string()),
                  "number": pa.array([1, 2, None, 2**31 - 1], pa.int32()),
                  "big": pa.array([2**53 + 1, None, -(2**63), 0], pa.int64())})
TEXTS = ["1", " 7 ", "1.5", "2147483648", "1e3", "x", "", None, "2013-02-30", "2013-02-28", "2013-02-28T12:00:00Z", "NaN", "-0",
         "12345678.905"]
NAME = "odd `name`.with dots"
BYTES = [b"plain", "\u00e9\ufffd\U0001f600".encode(), b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xe2\x82", None, b""]
WELL_FORMED = [True, True, False, False, False, False, None, True]


@contextmanager
def replacing(spark: SparkSession) -> Iterator[None]:
    """Have ``decode`` replace what it cannot decode, as in Spark 3.5; from 4.0 on it raises."""
    key = "spark.sql.legacy.codingErrorAction"
    spark.conf.set(key, "true")
    yield
    spark.conf.unset(key)


@pytest.mark.parametrize("frame_from", [frame_of, frame_of_rows])
@pytest.mark.parametrize("table_from", [table_of, table_of_batches])
def test_an_arrow_table_comes_back_as_it_went(spark: SparkSession, frame_from: object, table_from: object) -> None:
    assert callable(frame_from)
    assert callable(table_from)
    frame: DataFrame = frame_from(spark, TABLE)
    assert frame.schema.simpleString() == "struct<name:string,number:int,big:bigint>"
    assert table_from(frame.coalesce(1)).to_pydict() == TABLE.to_pydict()
    nothing = table_from(frame.where("number < 0"))
    assert (nothing.num_rows, nothing.column_names) == (0, TABLE.column_names)


def _joined(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
    name, number = (value.as_py() for value in key)
    parts = table.sort_by("at")["part"].to_pylist()
    return pa.table({"name": [name], "number": pa.array([number], pa.int64()), "joined": [b"".join(part or b"-" for part in parts)]})


@pytest.mark.parametrize("way", [apply_to_groups, apply_by_pandas])
def test_a_function_gets_the_rows_of_a_group_and_their_key(spark: SparkSession, way: object) -> None:
    assert callable(way)
    frame = frame_of(spark, pa.table({
        "name": ["a", "b", "a", "a"], "number": [2**53 + 1, 2, 2**53 + 1, 2], "at": [2, 1, 1, 1], "part": [b"\xff", None, b"x", b""]}))
    made: DataFrame = way(frame, ("name", "number"), _joined, "name string, number bigint, joined binary")
    assert sorted(tuple(row) for row in made.collect()) == [
        ("a", 2, bytearray(b"-")), ("a", 2**53 + 1, bytearray(b"x\xff")), ("b", 2, bytearray(b"-"))]


@pytest.mark.parametrize("kind", [IntegerType(), DoubleType(), DecimalType(10, 2), DateType(), TimestampType(), StringType()],
                         ids=lambda kind: kind.simpleString())
def test_a_value_that_does_not_fit_becomes_null_by_either_way_and_in_either_mode(spark: SparkSession, kind: object) -> None:
    frame = spark.createDataFrame([(text,) for text in TEXTS], f"`{NAME.replace('`', '``')}` string")
    found = []
    for ansi in ("true", "false"):
        with result_settings(spark):
            spark.conf.set("spark.sql.ansi.enabled", ansi)
            row = [frame.select(way(NAME, kind).cast("string")).collect() for way in (try_cast, try_cast_by_sql)]  # type: ignore[arg-type]
            assert row[0] == row[1]
            found += row
    assert found[0] == found[2]


def test_what_fits_is_kept(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("12345678.905",), ("123456789.905",), ("1",)], "value string")
    found = [row[0] for row in frame.select(try_cast("value", DecimalType(10, 2))).collect()]
    assert found == [Decimal("12345678.91"), None, Decimal("1.00")]


def test_a_type_is_found_by_the_name_that_sql_gives_it(spark: SparkSession) -> None:
    assert [type_of(name).simpleString() for name in ("bigint", "decimal(10, 2)", "TIMESTAMP_NTZ", "array<int>")] == [
        "bigint", "decimal(10,2)", "timestamp_ntz", "array<int>"]
    with pytest.raises(PySparkException):
        type_of("number")
    for name in ("bigint", "decimal(10,2)", "struct<a:int,`b c`:array<struct<`d``.e`:string>>,`\u00fc`:map<string,struct<`f-g`:date>>>"):
        assert ddl_of(type_of(name)) == name


def test_text_that_is_not_well_formed_is_found_by_either_way(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(data,) for data in BYTES], "data binary").selectExpr("cast(data as string) as text").coalesce(1)
    assert [row[0] for row in frame.select(is_valid_utf8("text")).collect()] == WELL_FORMED
    with replacing(spark):
        assert [row[0] for row in frame.select(is_valid_utf8_by_java("text")).collect()] == WELL_FORMED


def test_a_thread_takes_over_the_properties_of_the_one_that_starts_it(spark: SparkSession) -> None:
    found: list[str | None] = []
    spark.sparkContext.setLocalProperty("sparkring.test", "here")
    thread = inheriting_thread(spark, lambda name: found.append(spark.sparkContext.getLocalProperty(name)), "sparkring.test")
    assert thread.daemon
    thread.start()
    thread.join(60)
    assert found == ["here"]


def test_a_line_of_too_many_values_is_noticed_whichever_columns_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """The control: by its default Spark 3.5 cuts the line where not all columns are read."""
    (tmp_path / "table.csv").write_text("id,km\n1,2\n3,4,5\n")
    source = locate("table", SourceConfig(path=str(tmp_path / "table.csv"), columns={"id": "int"}))
    pruning = "spark.sql.csv.parser.columnPruning.enabled"
    spark.conf.set(pruning, "true")
    if spark.version.startswith("3."):
        assert open_raw(spark, source, cache=tmp_path)[0].select("id").count() == 2
    with result_settings(spark), pytest.raises(SPARK_ERRORS, match=r"(?i)malformed"):
        open_raw(spark, source, cache=tmp_path)[0].select("id").collect()
    spark.conf.set(pruning, RESULT_SETTINGS[pruning])


def test_what_results_depend_on_does_not_follow_the_default_of_a_version(spark: SparkSession) -> None:
    """The control: without the settings, the same query on the defaults of Spark 3.5 gives null where ours raises."""
    overflow = "select cast(2147483647 as int) + cast(1 as int) as sum, to_date('2013-2-3', 'yyyy-MM-dd') as day"
    for key, of_3_5 in {"spark.sql.ansi.enabled": "false", "spark.sql.legacy.timeParserPolicy": "EXCEPTION"}.items():
        assert key in RESULT_SETTINGS
        spark.conf.set(key, of_3_5)
    assert spark.sql("select cast(2147483647 as int) + cast(1 as int)").collect()[0][0] == -(2**31)
    with pytest.raises(PySparkException, match="INCONSISTENT_BEHAVIOR_CROSS_VERSION"):
        spark.sql("select to_date('2013-2-3', 'yyyy-MM-dd')").collect()
    with result_settings(spark), pytest.raises(PySparkException, match="ARITHMETIC_OVERFLOW"):
        spark.sql(overflow).collect()
    assert spark.conf.get("spark.sql.ansi.enabled") == "false"  # the user's own is back
    for key, ours in RESULT_SETTINGS.items():
        spark.conf.set(key, ours)
