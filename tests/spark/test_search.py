"""A search on Spark: trials are rings of their own, several at once, and the best is a run like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from harness.datasets import write_dataset
from sparkring.conf.schema import Config
from sparkring.errors import NotEnoughSlots
from sparkring.spark_jobs.searching.search import search
from sparkring.spark_jobs.stored.runs import list_runs
from tests.support.training import events_of, train_config

pytest_plugins = ["tests.support.spark_sessions"]
pytestmark = pytest.mark.spark


def _config(workspace: Path, **search_keys: Any) -> Config:
    return train_config(workspace, model={"hidden": [16]}, train={
        "num_ranks": 1, "epochs": 2, "batch_rows": 50, "optimizer": {"schedule": "constant"}}, search={
        "trials": 4, "pruner": "none", "metric": "auc",
        "space": {"train.optimizer.lr": {"low": 1e-5, "high": 0.1, "log": True}, "model.hidden": {"choices": [[4], [16]]}}, **search_keys})


def test_trials_train_at_once_and_the_best_is_a_run_like_any_other(spark: SparkSession, tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", ([600, 600],))
    config = _config(tmp_path, at_once=2)
    found = search(config, spark=spark)
    assert [trial.state for trial in found.trials] == ["done"] * 4, [trial.error for trial in found.trials]
    assert all(len(trial.epochs) == 2 for trial in found.trials)
    runs = [config.changed(run=trial.run) for trial in found.trials]
    spans = sorted((events_of(run, "start")[0]["time"], events_of(run, "end")[0]["time"]) for run in runs)
    assert spans[1][0] < spans[0][1], "the second began before the first had ended"
    assert found.best is not None
    assert found.best.value == max(trial.value for trial in found.trials if trial.value is not None)
    assert found.best.run in {run.name for run in list_runs(config.runs)}
    again = search(config, spark=spark)
    assert again.trials == found.trials, "all are known"
    with pytest.raises(NotEnoughSlots, match=r"for 99 trials of 1 ranks.*set search\.at_once to at most \d"):
        search(config, at_once=99, spark=spark)
