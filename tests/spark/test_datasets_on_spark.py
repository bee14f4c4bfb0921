"""Real datasets from Spark's own writer: what prepare commits is found whole, and what Petastorm wrote is adopted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from petastorm.codecs import NdarrayCodec, ScalarCodec
from petastorm.etl.dataset_metadata import materialize_dataset
from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row
from pyspark.sql import SparkSession, types

from sparkring.pipelines.data.dataset.integrity import check_footers
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.stored.adopt import adopt
from sparkring.spark_jobs.stored.dataset_gc import collect_garbage
from sparkring.spark_jobs.stored.datasets import show_version, verify_version
from tests.support.etl_tables import etl_config

pytest_plugins = ["tests.support.spark_sessions"]

ROWS = 200
SCHEMA = Unischema("Rides", [
    UnischemaField("id", np.int64, (), ScalarCodec(types.LongType()), False),
    UnischemaField("late", np.int8, (), ScalarCodec(types.ByteType()), False),
    UnischemaField("km", np.float32, (), ScalarCodec(types.FloatType()), False),
    UnischemaField("track", np.float32, (4, 2), NdarrayCodec(), False)])

pytestmark = pytest.mark.spark


def test_what_prepare_commits_is_whole_by_footer_and_by_hash_and_leaves_no_garbage(spark: SparkSession, tmp_path: Path) -> None:
    result = prepare(etl_config(tmp_path), spark=spark)
    dataset = Dataset(result.url)
    manifest = dataset.manifest()
    for split in manifest.splits.values():
        assert check_footers(dataset.store, manifest, split.files) == []
    assert verify_version(result.url).version == 1
    assert collect_garbage(result.url, grace_hours=0).garbage == {}
    assert show_version(result.url).quality is not None


def _row(number: int) -> dict[str, object]:
    return {"id": np.int64(number), "late": np.int8(number % 2), "km": np.float32(number),
            "track": np.full((4, 2), number, dtype=np.float32)}


def test_a_dataset_that_petastorm_materialised_is_adopted_and_read_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "rides"
    with materialize_dataset(spark, folder.as_uri(), SCHEMA, row_group_size_mb=1):
        rows = spark.sparkContext.parallelize(range(ROWS), 3).map(_row).map(lambda row: dict_to_spark_row(SCHEMA, row))
        spark.createDataFrame(rows, SCHEMA.as_spark_schema()).write.parquet(folder.as_uri())
    result = adopt(str(folder), row_id="id", label="late")
    assert (result.petastorm, result.rows, result.task, result.left_out) == (True, {"train": ROWS}, "binary", ())
    dataset = Dataset(str(folder))
    loader = Loader(SplitReader(dataset.store, dataset.manifest(), "train"), LoaderConfig(batch_rows=64, seed=1, lanes=4), rank=0,
                    num_ranks=1)
    seen = []
    for batch in loader.epoch(0):
        tensors = batch.tensors
        seen += tensors["row_id"].tolist()
        assert (tensors["track"][:, 3, 1] == tensors["row_id"]).all()
        assert (tensors["numeric"][:, 0] == tensors["row_id"]).all()
        assert (tensors["label"] == tensors["row_id"] % 2).all()
    assert sorted(seen) == list(range(ROWS))
    assert spark.read.parquet(folder.as_uri()).count() == ROWS  # the manifest beside the files is in nobody's way
    assert verify_version(str(folder)).files == len(dataset.manifest().splits["train"].files)
