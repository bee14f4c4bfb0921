"""A whole prepare, Spark included, stopped at a sample of its acts; tests/unit/data/test_commit_crash.py tries every act of a commit."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession

from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.prepare import prepare
from tests.support.etl_tables import etl_config, trips
from tests.support.faults import Faults
from tests.support.versions import damage

pytest_plugins = ["tests.support.spark_sessions"]


def test_a_prepare_that_dies_leaves_the_version_before_and_the_next_one_succeeds(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, trips(300))
    prepare(config, spark=spark)
    changed = config.model_copy(update={"prepare": config.prepare.model_copy(update={"seed": 2})})
    with Faults() as seen:
        prepare(changed, spark=spark)
    dataset = Dataset(config.dataset)
    commit = len(seen.acts) - 1 - seen.acts[::-1].index("link")
    before: list[int] = []
    for number in (0, commit // 3, 2 * commit // 3, commit):
        before = dataset.versions()
        config = config.model_copy(update={"prepare": config.prepare.model_copy(update={"seed": 10 + number})})
        with Faults(at=number, how="dead") as faults, suppress(OSError):
            prepare(config, spark=spark)
        assert faults.struck
        assert dataset.versions() == before
        assert damage(dataset, before[-1]) is None
    result = prepare(config, spark=spark)
    assert (result.version, result.reused) == (before[-1] + 1, False)
    assert damage(dataset, result.version) is None
