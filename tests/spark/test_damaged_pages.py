"""What prepare writes has a checksum a page, and neither Spark nor an append nor a score reads past one that does not match."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from harness.parquet_files import pages
from sparkring.conf.schema import Config
from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.sources.committed_files import naming_damaged_pages, read_committed
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import score
from tests.support.etl_tables import etl_config, save_untrained

pytest_plugins = ["tests.support.spark_sessions"]


def _flip_late(path: Path) -> None:
    """One bit of a page of the label, so that its values change and nothing else does."""
    data = bytearray(path.read_bytes())
    _, body, end = pages(bytes(data))[1]  # row_id, late, ...
    data[(body + end) // 2] ^= 4
    path.write_bytes(data)


def _labels(frame: DataFrame) -> list[int]:
    return [row[0] for row in frame.select(sf.col("late").cast("int")).collect()]


def test_a_flipped_bit_is_refused_by_all_that_spark_does_with_committed_rows(spark: SparkSession, tmp_path: Path) -> None:
    config: Config = etl_config(tmp_path)
    spark.conf.set("parquet.page.write-checksum.enabled", "false")  # prepare asks for checksums whatever the session says
    try:
        prepare(config, spark=spark)
    finally:
        spark.conf.unset("parquet.page.write-checksum.enabled")
    save_untrained(config)
    dataset = Dataset(config.dataset)
    files = dataset.manifest().splits["test"].files
    path = Path(dataset.store.path(files[0].path))
    data = path.read_bytes()
    assert all(header[4][1] & 0xFFFFFFFF == zlib.crc32(data[body:end]) for header, body, end in pages(data))
    expected = _labels(spark.read.parquet(str(path)))

    _flip_late(path)
    assert len(_labels(spark.read.parquet(str(path)))) == len(expected)  # the control: Spark reads on by itself
    assert _labels(spark.read.parquet(str(path))) != expected
    named = re.escape(path.name) + r" has a page with CRC-32 \w{8}, its header says \w{8}; .*datasets verify"
    with pytest.raises(DatasetError, match=rf"column late of row group 0 of .*{named}"), naming_damaged_pages(dataset.store, files):
        _labels(read_committed(spark, dataset.store, files))
    with pytest.raises(DatasetError, match=rf"column late of row group 0 of .*{named}"):
        score(config, spark=spark)
