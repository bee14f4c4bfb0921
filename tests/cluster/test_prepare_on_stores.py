"""The main road on every kind of store: Spark prepares a version there, and a loader reads every row of it once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import SourceConfig
from sparkring.errors import DatasetError, EnvironmentProblem
from sparkring.pipelines.data.dataset.unischema_pickle import COMMON_METADATA
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import score
from tests.support.etl_tables import etl_config, examples, save_untrained, trips, write_trips
from tests.support.versions import damage

pytest_plugins = ["tests.support.places", "tests.support.spark_sessions"]


@pytest.mark.parametrize("kind_and_url", ["local", pytest.param("volume", marks=pytest.mark.nightly), "s3", "hdfs", "memory"],
                         indirect=True)
def test_a_version_is_prepared_read_and_reused(place: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in os.environ.items():  # Spark's workers have the environment of the JVM, which may be older than the store
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    config = etl_config(tmp_path).model_copy(update={"dataset_url": place})
    first = prepare(config, spark=spark)
    assert (first.version, first.reused) == (1, False)
    dataset = Dataset(place)
    manifest = dataset.manifest()
    assert damage(dataset, 1) is None
    for name, split in manifest.splits.items():
        folder = f"data/{manifest.data_id}/{name}"
        assert dataset.store.names(folder) == sorted([COMMON_METADATA, *(Path(file.path).name for file in split.files)])
        reader, loading = SplitReader(dataset.store, manifest, name), LoaderConfig(batch_rows=64, seed=3, lanes=24, deadline_s=60)
        ids = [number for rank in range(3) for batch in Loader(reader, loading, rank=rank, num_ranks=3).epoch(0)
               for number in batch.tensors["row_id"].tolist()]
        assert sorted(ids) == sorted(trip.id * 10 for trip in examples(name))
    assert dataset.store.names(f"data/{manifest.data_id}") == []
    assert prepare(config, spark=spark).reused
    dataset.store.delete(manifest.splits["test"].files[0].path)
    again = prepare(config, spark=spark)
    assert (again.version, again.reused) == (2, False)
    assert dataset.manifest(2).content_id == manifest.content_id
    save_untrained(config)
    (source,) = config.prepare.sources.values()
    assert isinstance(source, SourceConfig)
    write_trips(Path(source.path), [*trips(), replace(trips()[0], id=1000)])
    kind, test_rows = place.partition(":")[0], manifest.splits["test"].rows
    if kind == "memory":  # a worker of Spark is another process, which has a memory of its own
        with pytest.raises(DatasetError, match=r"row group 0 of memory://.* cannot be read by a Python worker of Spark: .*executors reach"):
            score(config, spark=spark)
    else:
        assert score(config, spark=spark).rows == test_rows
    spark_reads: list[Callable[[], object]] = [
        lambda: evaluate(config, spark=spark)["split"], lambda: prepare(config, append=True, spark=spark).version]
    lacking = {"s3": r"org\.apache\.hadoop:hadoop-aws", "memory": 'No FileSystem for scheme "memory"'}.get(kind)
    if lacking:  # this Spark has no client for it
        for reads in spark_reads:
            with pytest.raises(EnvironmentProblem, match=rf"Spark cannot read \w+://.*{lacking}"):
                reads()
        assert dataset.versions() == [1, 2]
    else:
        assert [reads() for reads in spark_reads] == ["test", 3]
