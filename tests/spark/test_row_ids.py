"""Row ids that prepare makes: the same for the same row wherever it stands, one for each copy, and never one for two contents."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import Config, PrepareConfig
from sparkring.errors import ConfigError, SourceError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.columns.identity import content_columns, with_row_id
from sparkring.spark_jobs.etl.writing.write_dataset import split_layouts
from sparkring.spark_jobs.prepare import prepare
from tests.support.etl_tables import etl_config, trips

pytest_plugins = ["tests.support.spark_sessions"]

KEYLESS = {"query": "SELECT day, late, km, city FROM trips", "features": {"numeric": ["k*"], "categorical": ["city"]},
           "num_files": 1, "min_row_groups": 1}
BY_PART = PrepareConfig.model_validate({
    "sources": {}, "query": "", "label": "late", "features": {"numeric": ["n"]}, "split": {"by": "column", "column": "part"}})
COPIED = 3
"""Trip that the source holds three times."""


def _rows(folder: Path) -> list[list[str]]:
    """The lines of a source in which a trip is there three times, without the header."""
    etl_config(folder, trips())
    with (folder / "trips.csv").open(newline="", encoding="utf-8") as file:
        _, *rows = list(csv.reader(file))
    return [[row[0] if number != COPIED else "0", *row[1:]] for number, row in enumerate(rows)] + [rows[COPIED]] * 2


def _config(folder: Path, rows: list[list[str]], **prepare: Any) -> Config:
    folder.mkdir(exist_ok=True)
    with (folder / "trips.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "day", "km", "city", "late", "note"], *rows])
    return etl_config(folder, **(KEYLESS | prepare))


def _manifest(config: Config) -> Manifest:
    return Dataset(config.dataset).manifest()


def _ids(config: Config) -> list[int]:
    store, manifest = Dataset(config.dataset).store, _manifest(config)
    tables = (pq.read_table(store.path(file.path), columns=["row_id"]) for split in manifest.splits.values() for file in split.files)
    ids: list[int] = pa.concat_tables(tables)["row_id"].to_pylist()
    return ids


def _made(frame: DataFrame) -> dict[int, list[int]]:
    """The ids of each ``n``."""
    found: dict[int, list[int]] = {}
    columns = content_columns(BY_PART, frame.columns)
    for row in with_row_id(frame, columns, name="row_id").select("n", "row_id").collect():
        found.setdefault(row["n"], []).append(row["row_id"])
    return {n: sorted(ids) for n, ids in found.items()}


def test_an_id_depends_on_the_row_and_its_copies_alone(spark: SparkSession) -> None:
    rows = spark.range(40).select((sf.col("id") / 2).cast("int").alias("n"), sf.lit("x").alias("t"), sf.lit("train").alias("part"))
    few = _made(rows)
    assert {len(ids) for ids in few.values()} == {2}
    assert len({each for ids in few.values() for each in ids}) == 40
    assert all(each >= 0 for ids in few.values() for each in ids)
    more = rows.union(spark.range(1000, 1500).select(sf.col("id").cast("int"), sf.lit("y"), sf.lit("test")))
    again = _made(more.repartition(7).orderBy(sf.rand(3)))
    assert {n: again[n] for n in few} == few
    assert _made(rows.withColumn("part", sf.lit("test"))) == few, "a row that moves to another split is still that row"
    assert _made(rows.withColumn("n", sf.col("n").cast("bigint"))) == few, "an integer of another width is the same number"
    assert _made(rows.union(rows.where("n = 5").limit(1)))[5][:] != few[5]  # the control: one more copy, one more id
    assert set(few[5]) < set(_made(rows.union(rows.where("n = 5").limit(1)))[5])


def test_a_null_a_map_and_the_column_of_a_value_are_content(spark: SparkSession) -> None:
    rows = spark.sql("""SELECT * FROM VALUES (1, NULL, map('a', 1)), (NULL, 1, map('a', 1)), (NULL, NULL, map('a', 1)),
                        (1, NULL, map('a', 2)) AS t(a, b, m)""")
    assert len({each for ids in _made(rows.withColumn("n", sf.lit(0))).values() for each in ids}) == 4
    hashes = rows.select(sf.xxhash64("a", "b")).distinct().count()  # the control: Spark's hash skips nulls
    assert hashes < 3


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a dataset, whose first version has all trips, and its source."""
    folder = tmp_path_factory.mktemp("made")
    prepare(_config(folder, _rows(folder)), spark=spark)
    return folder


def test_a_table_without_a_key_gives_the_same_dataset_in_any_order(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    rows, manifest = _rows(tmp_path), Dataset(str(folder / "workspace" / "dataset")).manifest(1)
    assert sum(split.rows for split in manifest.splits.values()) == sum(row[4] != "NA" for row in rows)
    assert (manifest.row_id, manifest.row_id_of) == ("row_id", ("city", "day", "km", "late"))
    assert [feature.column for feature in manifest.preprocessing.numeric] == ["km"]
    random.Random(5).shuffle(rows)
    other = _config(tmp_path, rows)
    prepare(other, spark=spark)
    assert _manifest(other).content_id == manifest.content_id
    assert len(set(_ids(other))) == len(_ids(other))


def test_an_append_takes_new_rows_further_copies_and_changed_rows(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    rows = _rows(tmp_path)
    config = _config(folder, rows)
    before = _ids(config)
    changed = [*rows[7][:2], "55.5", *rows[7][3:]]
    _config(folder, [*rows[:7], changed, *rows[8:], rows[COPIED], [*rows[8][:2], "1.25", *rows[8][3:]]])
    result = prepare(config, append=True, spark=spark)
    assert (result.version, result.changed_rows, sum(result.rows.values())) == (2, 0, len(before) + 3)
    assert set(_ids(config)) > set(before)
    more = {"query": "SELECT day, late, km, city, id FROM trips"}
    with pytest.raises(ConfigError, match=r"row ids of version 2 are made of city, day, km, late, and would now be made of city, day, id,"):
        prepare(_config(folder, rows, **more), append=True, spark=spark)


def test_one_id_of_two_contents_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path).prepare
    ids = spark.range(5).select((sf.col("id") % 4).alias("row_id"))
    with pytest.raises(SourceError, match=r"made of each row's content, and 0 came out for 2 rows of different content, .*; name a"):
        split_layouts(ids, config, (), split=sf.lit("train"), made=True)
    with pytest.raises(SourceError, match="row_id is not unique: 0 stands for 2 rows; check that no join"):  # the control: a key
        split_layouts(ids, config, (), split=sf.lit("train"))


def test_two_columns_of_one_name_make_no_id(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, **(KEYLESS | {"query": "SELECT day, late, km, city, id, id + 1 AS ID FROM trips"}))
    with pytest.raises(ConfigError, match=r"2 problems were found; .*\n.*the query yields 2 columns ID, and row ids are made of all"):
        prepare(config, spark=spark)
