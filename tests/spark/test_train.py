"""Training through Spark: a run folder is one run, a killed rank is named, and the same call goes on where it ended."""

from __future__ import annotations

import html
import os
import shutil
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession
from safetensors.torch import load_file

from harness.datasets import write_dataset
from sparkring.cli.stored.audit import _text as audit_text
from sparkring.conf.schema import Config
from sparkring.errors import (
    CommitConflict,
    ConfigError,
    DatasetError,
    DatasetVersionNotFound,
    NotEnoughSlots,
    RankDied,
    RankFailed,
    RunFolderMismatch,
)
from sparkring.spark_jobs.comparing.compare import compare
from sparkring.spark_jobs.report import report
from sparkring.spark_jobs.spark.progress import SilentProgress
from sparkring.spark_jobs.stored.audit import audit
from sparkring.spark_jobs.train import train
from tests.support.training import await_condition, events_of, train_config

pytest_plugins = ["tests.support.spark_sessions"]

FILES = ([600, 600], [300], [501])
DEADLINE_S = 90.0

pytestmark = pytest.mark.spark


def _config(workspace: Path, **settings: Any) -> Config:
    write_dataset(workspace / "dataset", FILES)
    return _changed(workspace, **settings)


def _changed(workspace: Path, **settings: Any) -> Config:
    defaults = {"epochs": 2, "batch_rows": 100, "precision": "float64", "checkpoint_steps": 7, "optimizer": {"schedule": "constant"}}
    return train_config(workspace, model={"hidden": [16]}, train={**defaults, **settings})


def test_a_run_trains_once_and_is_reused_afterwards(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path)
    first = train(config, spark=spark)
    assert (first.reused, first.resumed_at, first.steps) == (False, 0, 42)
    assert first.validation["auc"] > 0.6
    assert {record["reduction"] for record in events_of(config, "start")} == {"shared memory"}
    assert [record["exact"] for record in events_of(config, "epoch")] == [True, True]
    again = train(config, spark=spark)
    assert (again.reused, again.steps, again.validation) == (True, 42, first.validation)
    with pytest.raises(RunFolderMismatch, match=r"train\.batch_rows=100, this config says 50"):
        train(_changed(tmp_path, batch_rows=50), spark=spark)


def test_strategies_are_compared_and_audit_and_report_say_of_each_what_holds(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path)
    result = compare(config, strategies="exact,local_sgd:4,stale_sync:2", spark=spark)
    page = Path(result.page.removeprefix("file://")).read_text(encoding="utf-8")
    assert result.verdict in html.unescape(page)
    for run in result.runs:
        assert (run.steps, run.ring, run.held_out["auc"] > 0.6) == (42, "2", True)
        mine = config.changed(run=run.run)
        proved, report_page = audit_text(audit(mine.run_url)), Path(report(mine).path.removeprefix("file://")).read_text(encoding="utf-8")
        assert "2 epochs read the id of each of 2,001 rows exactly once" in proved
        kind = run.strategy.partition(":")[0]
        said = f"strategy {kind}: each row counts once, but the gradients are not those of training on one rank"
        assert (said in proved, f"<dt>strategy</dt><dd>{kind}: " in report_page) == (kind != "exact", kind != "exact")
    exact, local, stale = result.runs
    assert local.sent_bytes < exact.sent_bytes, "a quarter of the exchanges, of twice the bytes"
    assert stale.staleness is not None
    assert stale.staleness <= 2
    again = compare(config, strategies="exact,local_sgd:4,stale_sync:2", spark=spark)
    assert ([run.run for run in again.runs], again.verdict) == ([run.run for run in result.runs], result.verdict), "each is reused"
    with pytest.raises(ConfigError, match=r"strategy=local_sgd has each rank compute with the whole model"):
        compare(_changed(tmp_path, parallel={"replicas": [1, 1]}), strategies="exact,local_sgd", spark=spark)


def test_a_run_starts_from_another_one_s_model_and_ends_once_that_learns_no_more(spark: SparkSession, tmp_path: Path) -> None:
    first = _config(tmp_path)
    train(first, spark=spark)
    shutil.copytree(tmp_path / "dataset", tmp_path / "tuned/dataset")
    notes = _Notes()
    tuned = _tuned(tmp_path, weights=first.run_url)
    result = train(tuned, spark=spark, progress=notes)
    assert result.epochs == len(events_of(tuned, "epoch")) < 40
    assert f"training: {result.ended_early}" in notes.texts
    assert any("training: starts from" in text for text in notes.texts)
    assert events_of(tuned, "epoch")[0]["train_loss"] < events_of(first, "epoch")[0]["train_loss"] - 0.02
    again = train(tuned, spark=spark)
    assert (again.reused, again.epochs, again.ended_early) == (True, result.epochs, result.ended_early)
    with pytest.raises(RunFolderMismatch, match=r"has model\.weights_sha256=\w+, this config says"):
        train(_tuned(tmp_path, weights=tuned.run_url), spark=spark)
    with pytest.raises(ConfigError, match=r"does not fit the network, with \d+ of another shape"):
        train(_tuned(tmp_path / "other", dataset=tmp_path / "dataset", hidden=[3], weights=first.run_url), spark=spark)
    assert not (tmp_path / "other").exists()
    with pytest.raises(ConfigError, match=r"early_stopping\.metric=accuracy is not measured for the task binary; set it to one of loss"):
        train(_changed(tmp_path, early_stopping={"metric": "accuracy"}), spark=spark)


def _tuned(folder: Path, *, dataset: Path | None = None, hidden: Sequence[int] = (16,), weights: str) -> Config:
    config = train_config(folder / "tuned", model={"hidden": hidden, "weights": weights}, train={
        "epochs": 40, "batch_rows": 100, "precision": "float64", "early_stopping": {"patience_epochs": 1, "min_delta": 0.005},
        "optimizer": {"schedule": "constant"}})
    return config.changed(dataset_url=str(dataset)) if dataset else config


class _Notes(SilentProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_without_the_version_or_the_rows_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path)
    with pytest.raises(DatasetVersionNotFound, match="has no version 9, it has 1"):
        train(config.model_copy(update={"dataset_version": 9}), spark=spark)
    write_dataset(tmp_path / "empty", FILES, validation_rows=0)
    with pytest.raises(DatasetError, match="has no rows in its validation split"):
        train(config.model_copy(update={"dataset_url": str(tmp_path / "empty")}), spark=spark)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(NotEnoughSlots, match="of the 50 free slots needed"):
        train(_changed(tmp_path, num_ranks=50), spark=spark)
    assert not (tmp_path / "runs/first.json").exists()  # the next attempt is free to choose its lanes


def test_a_killed_rank_is_named_and_the_same_call_goes_on_to_the_undisturbed_result(spark: SparkSession, tmp_path: Path) -> None:
    undisturbed = _config(tmp_path / "undisturbed", epochs=5, batch_rows=10, checkpoint_steps=50)
    train(undisturbed, spark=spark)
    config = _config(tmp_path / "killed", epochs=5, batch_rows=10, checkpoint_steps=50, recovery={"restarts": 0})
    raised: list[BaseException] = []

    def attempt() -> None:
        try:
            train(config, spark=spark)
        except RankDied as error:
            raised.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    await_condition(lambda: events_of(config, "checkpoint"), "a checkpoint")
    with pytest.raises(CommitConflict, match="is being trained by another process"):
        train(config, spark=spark)
    pids = {record["rank"]: record["pid"] for record in events_of(config, "start")}
    os.kill(pids[1], signal.SIGKILL)
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the job did not end"
    assert [(error.rank, error.exit_code) for error in raised if isinstance(error, RankDied)] == [(1, -signal.SIGKILL)]
    assert "rank 1" in str(raised[0])
    assert "SIGKILL" in str(raised[0])
    await_condition(lambda: not any(psutil.pid_exists(pid) for pid in pids.values()), "the end of all ranks")

    result = train(config, spark=spark)
    assert result.resumed_at > 0
    weights = [load_file(next((Path(cfg.run_url) / "model").glob("*.safetensors"))) for cfg in (undisturbed, config)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    proved = audit(config.run_url)
    assert (proved.finished, proved.epochs, [part.generation for part in proved.parts]) == (True, 5, [0, 1])


def test_a_damaged_dataset_stops_the_run_with_the_rank_and_the_file(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path)
    next((tmp_path / "dataset/data/d1/train").glob("part-1.parquet")).unlink()
    with pytest.raises(RankFailed, match=r"part-1\.parquet is missing") as raised:
        train(config, spark=spark)
    assert raised.value.rank in (0, 1)
    assert "Traceback" in raised.value.rank_traceback
