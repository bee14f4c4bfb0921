"""Stages through Spark: ranks of a barrier stage hold parts of one model, and the run goes on in another layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import Config, SparkConfig
from sparkring.errors import LayoutRefused
from sparkring.pipelines.training.events import read_events
from sparkring.spark_jobs.audit import audit
from sparkring.spark_jobs.session import spark_session
from sparkring.spark_jobs.train import train
from tests.support.datasets import write_dataset
from tests.support.training import largest_difference, train_config, weights_of_run

FILES = ([600, 600], [300], [501])
TWO_OF_TWO = {"num_ranks": 4, "parallel": {"replicas": [2, 2], "micro_batches": 4}}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = spark_session(SparkConfig(master="local[4]"), app_name="test_train_stages")
    yield session
    session.stop()


def _config(workspace: Path, **settings: Any) -> Config:
    defaults = {"epochs": 2, "batch_rows": 100, "precision": "float64", "optimizer": {"schedule": "constant"}, "lanes": 24}
    return train_config(workspace, model={"hidden": [16, 8]}, train={**defaults, **settings})


def test_two_stages_of_two_train_what_one_rank_trains(spark: SparkSession, tmp_path: Path) -> None:
    staged, alone = _config(tmp_path / "staged", **TWO_OF_TWO), _config(tmp_path / "alone", num_ranks=1)
    for config in (staged, alone):
        write_dataset(Path(config.dataset), FILES)
    result, wanted = train(staged, spark=spark), train(alone, spark=spark)
    assert largest_difference(weights_of_run(tmp_path / "staged"), weights_of_run(tmp_path / "alone")) < 1e-10
    assert result.validation == pytest.approx(wanted.validation, rel=1e-9)
    assert [record["readers"] for record in read_events(staged.run) if record["event"] == "start"] == [2] * 4
    assert audit(staged.run).finished


def test_a_layout_that_the_model_has_no_blocks_for_is_refused_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path, num_ranks=4, parallel={"replicas": [2, 2], "micro_batches": 4, "cut": [1, 1]})
    write_dataset(Path(config.dataset), FILES)
    with pytest.raises(LayoutRefused, match="the model has 4 blocks"):
        train(config, spark=spark)
    assert not Path(config.run).exists()
