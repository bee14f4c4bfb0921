"""``sparkring init`` on real files: what it writes is a config that ``prepare`` takes as it stands."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession

from sparkring.errors import ConfigError, SourceError
from sparkring.spark_jobs.inference.init import init
from sparkring.spark_jobs.prepare import prepare

pytest_plugins = ["tests.support.spark_sessions"]

ROWS = 3_000


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV as a spreadsheet writes it: semicolons, NA for missing numbers, a key, a copy of the label in words."""
    draw = random.Random(3)
    lines = ["order no;ordered_at;country;customer;items;price;note;refund;returned"]
    for number in range(ROWS):
        items, price = draw.randint(1, 9), round(draw.uniform(1, 99), 2)
        returned = int(draw.random() < items / 10)
        lines.append(";".join(map(str, (
            f"A-{number:05d}", f"2026-01-{1 + number // 100:02d} {number % 24:02d}:30:00", draw.choice(["DE", "FR", "IT"]),
            f"c{number % 700}", items, "NA" if number % 9 == 0 else price, "never again" if returned else "",
            "yes" if returned else "no", returned))))
    file = tmp_path_factory.mktemp("init") / "Orders 2026.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_what_is_found_out_is_a_config_that_prepares(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    target = tmp_path / "not/there/my.yaml"
    result = init(str(orders), label="returned", output=target, spark=spark)
    assert result.rows == ROWS
    assert {each.column: each.use for each in result.choices.columns} == {
        "order_no": "left out", "ordered_at": "moments", "country": "categorical", "customer": "hashed", "items": "numeric",
        "price": "numeric", "note": "left out", "refund": "left out"}
    assert [each.column for each in result.choices.columns if each.leaks] == ["note", "refund"]
    written = yaml.safe_load(target.read_text())
    source = written["prepare"]["sources"]["orders_2026"]
    assert (source["path"], source["separator"], source["null_value"], source["columns"]["price"]) == (str(orders), ";", "NA", "double")
    made = prepare(target, spark=spark)
    assert sum(made.rows.values()) == ROWS
    assert min(made.rows.values()) > 200
    with pytest.raises(ConfigError, match=r"my\.yaml exists already; give another name with --output"):
        init(str(orders), label="returned", output=target, spark=spark)
    with pytest.raises(ConfigError, match=r"my\.yaml/x\.yaml cannot be written: .*; name a file in a folder that can be written"):
        init("nowhere", label="returned", output=target / "x.yaml", spark=spark)


def test_names_that_a_dataset_cannot_have_and_line_breaks_in_quotes_are_prepared_too(spark: SparkSession, tmp_path: Path) -> None:
    file, draw = tmp_path / "irises.csv", random.Random(5)
    file.write_text("sepal length,note,class\n" + "".join(
        f'{draw.randint(1, 90)},"{draw.choice(("a", "b"))}\nc",{draw.randint(0, 1)}\n' for _ in range(300)), encoding="utf-8")
    target = tmp_path / "my.yaml"
    result = init(str(file), label="class", output=target, spark=spark)
    assert (result.rows, result.choices.label, [each.column for each in result.choices.columns]) == (
        300, "c_class", ["sepal_length", "note"])
    written = yaml.safe_load(target.read_text())["prepare"]
    assert written["query"] == "SELECT `sepal length` AS `sepal_length`, `note`, `class` AS `c_class` FROM irises"
    assert written["sources"]["irises"]["multi_line"] is True
    assert sum(prepare(target, spark=spark).rows.values()) == 300


def test_objects_in_json_whose_keys_are_no_names_in_sql_are_prepared_too(spark: SparkSession, tmp_path: Path) -> None:
    file, draw, target = tmp_path / "visits.json", random.Random(5), tmp_path / "my.yaml"
    rows = ({"km": draw.random(), "who": {"first name": "x", "zip-code": [7]}, "late": draw.randint(0, 1)} for _ in range(300))
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    init(str(file), label="late", output=target, spark=spark)
    columns = yaml.safe_load(target.read_text())["prepare"]["sources"]["visits"]["columns"]
    assert columns["who"] == "struct<`first name`:string,`zip-code`:array<bigint>>"
    assert sum(prepare(target, spark=spark).rows.values()) == 300


def test_a_table_of_the_session_and_parquet_need_no_types(spark: SparkSession, orders: Path, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = spark.read.csv(str(orders), header=True, sep=";", inferSchema=True, nullValue="NA").drop("order no", "note", "refund")
    rows.write.parquet(str(tmp_path / "orders"))
    (tmp_path / "orders").rename(tmp_path / "orders.parquet")
    rows.createOrReplaceTempView("bought")
    of_files = init("orders.parquet", label="price", spark=spark)
    of_table = init("bought", label="price", spark=spark)
    assert of_files.choices == of_table.choices
    assert of_files.choices.task == "regression"
    sources = {name: yaml.safe_load(Path(f"{name}.yaml").read_text())["prepare"]["sources"] for name in ("orders", "bought")}
    assert sources == {"orders": {"orders": {"path": "orders.parquet", "format": "parquet"}},
                       "bought": {"bought": {"format": "table", "table": "bought"}}}


def test_timestamps_in_nanoseconds_which_spark_does_not_read_are_refused_with_the_way_out(spark: SparkSession, tmp_path: Path) -> None:
    file, way_out = tmp_path / "bought.parquet", r"in microseconds, in pandas with to_parquet\(path, coerce_timestamps='us'\)\.$"
    rows = pd.DataFrame({"at": pd.to_datetime(["2026-01-01"] * 3).astype("datetime64[ns]"), "km": [1.0, 2.0, 3.0], "late": [0, 1, 0]})
    rows.to_parquet(file)
    with pytest.raises(SourceError, match=r"^Spark cannot read .*bought\.parquet: .*NANOS.*; check that .*" + way_out):
        init(str(file), label="late", output=tmp_path / "my.yaml", spark=spark)
    assert sorted(tmp_path.iterdir()) == [file]
    config = {"name": "bought", "workspace": str(tmp_path / "runs"), "prepare": {
        "sources": {"bought": {"path": str(file), "format": "parquet"}}, "query": "SELECT * FROM bought", "label": "late",
        "features": {"numeric": ["km"]}, "split": {"by": "random"}}}
    with pytest.raises(SourceError, match=r"^source bought: Spark cannot read .*NANOS.*; correct prepare\.sources\.bought, .*" + way_out):
        prepare(config, spark=spark)
    rows.to_parquet(file, coerce_timestamps="us")
    assert init(str(file), label="late", output=tmp_path / "my.yaml", spark=spark).rows == 3


@pytest.mark.parametrize(("table", "label", "message"), [
    pytest.param("nowhere", "returned", "nowhere is neither a file here nor a table that Spark can read: .*; give a path", id="no table"),
    pytest.param("x.xlsx", "returned", r"the format of x\.xlsx cannot be told from its name; give a file or folder of", id="a format"),
    pytest.param("x.csv.zip", "returned", r"x\.csv\.zip is a zip, inside which Spark cannot look; unpack it", id="a zip"),
    pytest.param("x.CSV.ZIP", "returned", r"x\.CSV\.ZIP is a zip, inside which Spark cannot look; unpack it", id="a zip in capitals"),
    pytest.param("x" * 300, "returned", "File name too long", id="a name that the system refuses"),
    pytest.param("orders.csv", "retuned", "has no column retuned; did you mean 'returned'.; it has order no, ordered_at", id="a label"),
])
def test_what_cannot_be_looked_at_is_refused_and_nothing_is_written(
        spark: SparkSession, orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, label: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orders.csv").write_bytes(orders.read_bytes())
    for name in ("x.xlsx", "x.csv.zip", "x.CSV.ZIP"):
        Path(name).write_bytes(b"PK")
    before = sorted(Path.cwd().iterdir())
    with pytest.raises(SourceError, match=message):
        init(table, label=label, spark=spark)
    assert sorted(Path.cwd().iterdir()) == before


@pytest.mark.parametrize(("header", "message"), [
    pytest.param(",km,late", r"the header of \S+ has no name for column 1; .* index=False", id="an index"),
    pytest.param("km,late,KM", "has 2 columns km, whose capitals Spark ignores; give each", id="capitals"),
])
def test_a_csv_whose_header_spark_would_refuse_is_refused_in_one_sentence(
        spark: SparkSession, tmp_path: Path, header: str, message: str) -> None:
    file, target = tmp_path / "x.csv", tmp_path / "my.yaml"
    file.write_text(f"{header}\n0,1,5\n1,0,5\n", encoding="utf-8")
    with pytest.raises(SourceError, match=message):
        init(str(file), label="late", output=target, spark=spark)
    assert not target.exists()


def test_a_damaged_file_is_named_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"km": [1.5] * 500, "late": [0, 1] * 250}), file)
    file.write_bytes(b"PAR1" + bytes(60) + file.read_bytes()[64:])
    with pytest.raises(SourceError, match=r"reading \S+x\.parquet fails: .*; correct it"):
        init(str(file), label="late", output=tmp_path / "my.yaml", spark=spark)
