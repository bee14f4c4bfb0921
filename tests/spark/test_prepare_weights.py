"""Weights of rows: stored as the query yields them, appended with new rows, and trained with."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.spark_jobs.prepare import prepare
from tests.support.etl_tables import Trip, etl_config, trips, write_trips

pytest_plugins = ["tests.support.spark_sessions"]

QUERY = "SELECT id * 10 AS row_id, day, late, km, city, CAST(id % 4 AS DECIMAL(9, 2)) / 10 AS importance FROM trips"
FEATURES = {"numeric": ["km"], "categorical": ["city"]}


def _weights(config: Config) -> dict[int, float]:
    """The weight of each row of the latest version, by row id."""
    dataset, found = Dataset(config.dataset), dict[int, float]()
    manifest = dataset.manifest()
    assert manifest.weight == "importance"
    for split in manifest.splits:
        reader = SplitReader(dataset.store, manifest, split, tensors=["row_id", "weight"])
        for batch in Loader(reader, LoaderConfig(batch_rows=64, seed=1, lanes=24), rank=0, num_ranks=1).epoch(0):
            found |= dict(zip(batch.tensors["row_id"].tolist(), batch.tensors["weight"].tolist(), strict=True))
    return found


def _expected(rows: list[Trip]) -> dict[int, float]:
    return {trip.id * 10: trip.id % 4 / 10 for trip in rows if trip.late is not None}


def test_weights_are_stored_as_they_are_and_new_rows_bring_theirs(spark: SparkSession, tmp_path: Path) -> None:
    rows = trips()
    config = etl_config(tmp_path, rows[::2], query=QUERY, features=FEATURES, weight="importance")
    prepare(config, spark=spark)
    assert _weights(config) == _expected(rows[::2])
    write_trips(tmp_path / "trips.csv", rows)
    prepare(config, append=True, spark=spark)
    assert _weights(config) == _expected(rows)
    without = config.changed(prepare=config.prepare.changed(weight=None))
    with pytest.raises(ConfigError, match=r"another prepare\.weight than this config's"):
        prepare(without, append=True, spark=spark)
