"""The mended Petastorm on the Arrow and NumPy that are here: it writes, reads, converts a DataFrame and loads torch batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from petastorm import TransformSpec, make_batch_reader, make_reader
from petastorm.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from petastorm.etl.dataset_metadata import materialize_dataset
from petastorm.predicates import in_set
from petastorm.pytorch import BatchedDataLoader, DataLoader
from petastorm.spark import SparkDatasetConverter, make_spark_converter
from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row
from pyspark.sql import SparkSession, types

pytest_plugins = ["tests.support.spark_sessions"]

ROWS = 40
SCHEMA = Unischema("Rides", [
    UnischemaField("id", np.int64, (), ScalarCodec(types.LongType()), False),
    UnischemaField("city", np.str_, (), ScalarCodec(types.StringType()), True),
    UnischemaField("track", np.float32, (4, 2), NdarrayCodec(), False),
    UnischemaField("photo", np.uint8, (3, 5, 3), CompressedImageCodec("png"), False)])


def _row(number: int) -> dict[str, object]:
    return {"id": np.int64(number), "city": None if number % 4 == 0 else f"c{number % 4}",
            "track": np.full((4, 2), number, np.float32), "photo": np.full((3, 5, 3), number, np.uint8)}


@pytest.fixture(scope="module")
def rides(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset that Petastorm wrote."""
    url = (tmp_path_factory.mktemp("petastorm") / "rides").as_uri()
    with materialize_dataset(spark, url, SCHEMA, row_group_size_mb=1):
        rows = spark.sparkContext.parallelize(range(ROWS), 2).map(_row).map(lambda row: dict_to_spark_row(SCHEMA, row))
        spark.createDataFrame(rows, SCHEMA.as_spark_schema()).write.parquet(url)
    return url


@pytest.mark.parametrize("pool", ["dummy", "thread", pytest.param("process", marks=pytest.mark.nightly)])
def test_rows_come_back_as_they_were_written(rides: str, pool: str) -> None:
    with make_reader(rides, reader_pool_type=pool, workers_count=2, num_epochs=1) as reader:
        rows = {int(row.id): row for row in reader}
    assert sorted(rows) == list(range(ROWS))
    for number, row in rows.items():
        wanted = _row(number)
        assert row.city == wanted["city"]  # None, not NaN
        assert (row.track == wanted["track"]).all()
        assert (row.photo == wanted["photo"]).all()


def test_predicates_transforms_and_torch_batches_work(rides: str) -> None:
    with make_reader(rides, reader_pool_type="dummy", num_epochs=1, predicate=in_set({3, 5}, "id"),
                     transform_spec=TransformSpec(removed_fields=["city", "photo"])) as reader, DataLoader(reader, batch_size=2) as loader:
        (batch,) = list(loader)
    assert (sorted(batch["id"].tolist()), tuple(batch["track"].shape)) == ([3, 5], (2, 4, 2))


@pytest.mark.parametrize("kind", [DataLoader, BatchedDataLoader])
def test_a_dataframe_becomes_torch_batches_through_the_converter(spark: SparkSession, tmp_path: Path, kind: type) -> None:
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, tmp_path.as_uri())
    converter = make_spark_converter(spark.range(ROWS).selectExpr("id", "cast(id AS double) * 0.5 AS half", "array(id, id + 1) AS pair"))
    try:
        with converter.make_torch_dataloader(batch_size=8, num_epochs=1, data_loader_fn=kind) as loader:
            batches = list(loader)
        ids = [number for batch in batches for number in batch["id"].tolist()]
        assert (len(converter), sorted(ids)) == (ROWS, list(range(ROWS)))
        assert all((batch["half"] == batch["id"] * 0.5).all() and (batch["pair"][:, 1] == batch["id"] + 1).all() for batch in batches)
    finally:
        converter.delete()
    assert list(tmp_path.rglob("*.parquet")) == []


def test_plain_parquet_in_folders_is_read_in_batches(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "plain").as_uri()
    rows = spark.range(ROWS).selectExpr("id", "IF(id % 4 = 0, NULL, concat('c', id % 4)) AS city", "id % 2 AS half")
    rows.write.partitionBy("half").parquet(url)
    with make_batch_reader(url, reader_pool_type="thread", num_epochs=1, filters=[("half", "=", 1)]) as reader:
        read = [row for batch in reader for row in zip(batch.id.tolist(), batch.city.tolist(), batch.half.tolist(), strict=True)]
    assert sorted(read) == [(number, f"c{number % 4}", 1) for number in range(1, ROWS, 2)]
