"""Stages through Spark, by the command line: ranks of a barrier stage hold parts of one model, and a run goes on in another layout."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from harness.datasets import write_dataset
from harness.small_configs import TWO_OF_TWO, three_packages
from sparkring.conf.loading import load_config
from sparkring.conf.schema import Config
from sparkring.errors import LayoutRefused, RankDied
from sparkring.pipelines.training.events.writer import Record, read_events
from sparkring.spark_jobs.run.place import with_existing_run
from sparkring.spark_jobs.stored.audit import audit
from sparkring.spark_jobs.train import train
from tests.support.command_line import said
from tests.support.ring_driver import wait_until
from tests.support.training import largest_difference, train_config, weights_of_run

pytest_plugins = ["tests.support.spark_sessions"]

FILES = ([600, 600], [300], [501])
DEADLINE_S = 90.0


def _events(config: Config, kind: str) -> list[Record]:
    return [record for record in read_events(config.run_url) if record["event"] == kind]


def _tabular(workspace: Path, **settings: Any) -> Config:
    defaults = {"epochs": 2, "batch_rows": 100, "precision": "float64", "optimizer": {"schedule": "constant"}, "lanes": 24}
    return train_config(workspace, model={"hidden": [16, 8]}, train={**defaults, **settings})


@pytest.mark.nightly
def test_a_decoder_of_two_stages_of_two_learns_python_s_own_sources_as_one_rank_does(spark: SparkSession, tmp_path: Path) -> None:
    staged = three_packages(tmp_path / "staged", precision="float64", lanes=24, **TWO_OF_TWO)
    alone = three_packages(tmp_path / "alone", precision="float64", lanes=24, num_ranks=1)
    said("prepare", staged)
    trained = said("train", staged)
    config = with_existing_run(load_config(staged))
    steps = len([record for record in _events(config, "step") if record["rank"] == 0])
    assert trained.startswith(f"{steps} steps, 1 epochs (trained)")
    said("train", alone, "--set", f"dataset_url={config.dataset}")
    weights = [weights_of_run(tmp_path / folder / "text") for folder in ("staged", "alone")]
    assert largest_difference(*weights) < 1e-10
    assert audit(config.run_url).finished
    timelines = _events(config, "timeline")
    assert sorted(record["worker"] for record in timelines) == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert {(record["schedule"], record["epoch"], record["step"]) for record in timelines} == {("1f1b", 0, 1)}
    said("report", staged, "--step", str(tmp_path / "step.svg"))
    assert re.search(r"measured [\d.]+\s(ms|s), [\d.]+\s% idle", (tmp_path / "step.svg").read_text(encoding="utf-8"))
    assert "Step 2 of epoch 1, worker by worker" in (Path(config.run_url) / "report.html").read_text(encoding="utf-8")


def test_a_killed_stage_ends_the_job_by_name_and_the_run_goes_on_in_another_layout_to_the_same_weights(
        spark: SparkSession, tmp_path: Path) -> None:
    layouts: dict[str, dict[str, Any]] = {"alone": {"num_ranks": 1}, "staged": {**TWO_OF_TWO, "recovery": {"restarts": 0}},
               "other": {"num_ranks": 3, "parallel": {"replicas": [1, 2]}}}
    alone, staged, other = (_tabular(tmp_path / ("alone" if name == "alone" else "staged"), epochs=8, checkpoint_steps=7, **layout)
                            for name, layout in layouts.items())
    for config in (alone, staged):
        write_dataset(Path(config.dataset), FILES)
    raised: list[RankDied] = []

    def attempt() -> None:
        with pytest.raises(RankDied) as caught:
            train(staged, spark=spark)
        raised.append(caught.value)

    thread = threading.Thread(target=attempt)
    thread.start()
    wait_until(lambda: bool(_events(staged, "checkpoint")), "a checkpoint")
    pids = {record["rank"]: record["pid"] for record in _events(staged, "start")}
    os.kill(pids[2], signal.SIGKILL)  # the first replica of the second stage
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the job did not end"
    assert [(error.rank, error.exit_code) for error in raised] == [(2, -signal.SIGKILL)]
    wait_until(lambda: not any(map(psutil.pid_exists, pids.values())), "the end of all ranks")
    result, wanted = train(other, spark=spark), train(alone, spark=spark)
    assert result.resumed_at > 0
    assert largest_difference(weights_of_run(tmp_path / "staged"), weights_of_run(tmp_path / "alone")) < 1e-10
    assert result.validation == pytest.approx(wanted.validation, rel=1e-9)
    assert [record["readers"] for record in _events(other, "start")] == [2] * 4 + [1] * 3
    assert audit(other.run_url).finished


def test_a_layout_that_the_model_has_no_blocks_for_is_refused_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    config = _tabular(tmp_path, num_ranks=4, parallel={"replicas": [2, 2], "micro_batches": 4, "cut": [1, 1]})
    write_dataset(Path(config.dataset), FILES)
    with pytest.raises(LayoutRefused, match="the model has 4 blocks"):
        train(config, spark=spark)
    assert not Path(config.run_url).exists()
