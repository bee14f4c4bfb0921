"""The shipped config for Python's library: whole packages are held out, and each split has its share of the bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from sparkring.conf.loading import load_config
from sparkring.spark_jobs.etl.columns.splits import SPLITS, split_name
from sparkring.spark_jobs.etl.examples import run_query
from sparkring.spark_jobs.etl.sources.tables import locate, read_table

pytest_plugins = ["tests.support.spark_sessions"]

BY_HASH = "prepare.split={by: hash, column: path, validation_share: 0.1, test_share: 0.1}"


def _splits(spark: SparkSession, folder: Path, *overrides: str) -> dict[str, dict[str, int]]:
    """Bytes of each file of each split."""
    config = load_config("base/python-text", [f"workspace={folder}", *overrides]).prepare
    library, _ = read_table(spark, locate("library", config.sources["library"]), cache=folder)
    library.createOrReplaceTempView("library")
    found = run_query(spark, config).rows.select("path", split_name(config).alias("name"), "content").collect()
    spark.catalog.dropTempView("library")
    return {name: {row["path"]: len(row["content"]) for row in found if row["name"] == name} for name in SPLITS}


def test_whole_packages_are_held_out_about_a_tenth_of_the_bytes_each(spark: SparkSession, tmp_path: Path) -> None:
    packages: dict[str, list[set[str]]] = {}
    shares: dict[str, NDArray[np.float64]] = {}
    for how in ("", BY_HASH):
        splits = _splits(spark, tmp_path, *([how] if how else []))
        sizes = np.array([sum(files.values()) for files in splits.values()])
        assert 1.2e6 < sizes.sum() < 2.2e6
        packages[how] = [{path.split("/")[0] for path in files} for files in splits.values()]
        shares[how] = sizes / sizes.sum()
    assert [len(names) for names in packages[""]] == [6, 3, 3]  # all that the query names are there
    assert len(set.union(*packages[""])) == 12  # each in one split
    assert shares[""] == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    assert shares[BY_HASH] != pytest.approx([0.8, 0.1, 0.1], abs=0.03)  # the control: few files of very unequal sizes
    assert packages[BY_HASH][2] <= packages[BY_HASH][0]  # whose neighbours were trained on
