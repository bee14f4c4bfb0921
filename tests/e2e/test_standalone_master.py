"""Whole jobs on a standalone Spark master with two worker processes: executors are other processes than the driver.

The main job on a month of flights, then the same network and a decoder in two stages of two, by one cluster and one session. Nightly,
both as the planner says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkring.pipelines.training.events.writer import Record, read_events
from sparkring.spark_jobs.auto_layout import PROFILE
from sparkring.spark_jobs.stored.audit import audit
from tests.support.ring_driver import ROOT, bytecode
from tests.support.small_configs import TWO_OF_TWO, january_flights, three_packages
from tests.support.spark_cluster import standalone
from tests.support.training import largest_difference, weights_of_run

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the workspaces of three jobs: ``flights``, ``staged`` and ``text``."""
    folder = tmp_path_factory.mktemp("cluster")
    flights, text = january_flights(folder), three_packages(folder, **TWO_OF_TWO)
    in_stages = {"workspace": folder / "staged", "dataset_url": folder / "flights" / "dataset", "train.num_ranks": TWO_OF_TWO["num_ranks"],
                 "train.parallel": json.dumps(TWO_OF_TWO["parallel"])}
    _on_a_cluster(folder, ["demo", flights], ["train", flights, *_set(in_stages)], ["prepare", text], ["train", text], within_s=500)
    return folder


def _on_a_cluster(folder: Path, *commands: list[str], within_s: float) -> None:
    """Run commands one after the other, in one session."""
    with standalone(folder, gpus=("0", "1"), cores=2) as master:
        here = _set({"spark.master": master, "spark.conf.spark.executor.memory": "900m", "spark.conf.spark.driver.host": "127.0.0.1",
                     "spark.conf.spark.driver.bindAddress": "127.0.0.1", "spark.conf.spark.sql.shuffle.partitions": 4})
        ended = subprocess.run(
            [sys.executable, "-m", "tests.support.commands_main", json.dumps([[*command, *here] for command in commands])], cwd=folder,
            env={**os.environ, **bytecode(folder), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=within_s, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]


def _set(values: dict[str, Any]) -> list[str]:
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


def _events(workspace: Path, kind: str) -> list[Record]:
    return [record for record in read_events(str(workspace / "run")) if record["event"] == kind]


def test_the_main_job_runs_on_separate_worker_processes(runs: Path) -> None:
    workspace = runs / "flights"
    assert [(record["rank"], record["size"], record["reduction"]) for record in _events(workspace, "start")] == [
        (0, 2, "shared memory"), (1, 2, "shared memory")]
    assert [record["exact"] for record in _events(workspace, "epoch")] == [True]
    evaluation = json.loads((workspace / "run" / "evaluation.json").read_text(encoding="utf-8"))
    assert evaluation["network"]["auc"] > evaluation["base_rate"]["auc"]
    assert (workspace / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["staged", "text"])
def test_two_stages_of_two_train_on_separate_worker_processes(runs: Path, name: str) -> None:
    workspace = runs / name
    assert [(record["rank"], record["size"], record["readers"]) for record in _events(workspace, "start")] == [
        (rank, 4, 2) for rank in range(4)]
    assert [record["exact"] for record in _events(workspace, "epoch")] == [True]
    assert sorted(record["worker"] for record in _events(workspace, "timeline")) == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert audit(str(workspace / "run"), dataset_url=str(runs / ("flights" if name == "staged" else name) / "dataset")).finished
    losses = [record["loss"] for record in _events(workspace, "step") if record["rank"] == 0]
    assert sum(losses[-3:]) < sum(losses[:3])


def test_the_same_network_on_the_same_rows_learns_the_same_in_stages_and_without(runs: Path) -> None:
    plain, staged = (_events(runs / name, "epoch")[0] for name in ("flights", "staged"))
    assert staged["rows"] == plain["rows"] > 10_000
    assert staged["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-4)
    assert staged["validation"] == pytest.approx(plain["validation"], rel=1e-3)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", ["flights", "text"])
def test_what_the_planner_chooses_trains_as_one_rank_does_on_separate_worker_processes(tmp_path: Path, name: str) -> None:
    config = (january_flights if name == "flights" else three_packages)(tmp_path, precision="float64", lanes=24)
    dataset = tmp_path / name / "dataset"
    alone = {"workspace": tmp_path / "alone", "dataset_url": dataset, "train.num_ranks": 1}
    auto = {"workspace": tmp_path / "auto", "dataset_url": dataset, "train.num_ranks": 4, "train.parallel": '"auto"'}
    _on_a_cluster(tmp_path, ["prepare", config], ["train", config, *_set(alone)], ["train", config, *_set(auto)], within_s=1200)
    assert largest_difference(weights_of_run(tmp_path / "auto"), weights_of_run(tmp_path / "alone")) < 1e-10
    document = json.loads((tmp_path / "auto" / "run" / PROFILE).read_text(encoding="utf-8"))
    assert len(document["ranks"]) == 4, "four ranks were measured"
    assert {record["size"] for record in _events(tmp_path / "auto", "start")} == {document["chosen"]["num_ranks"]}
    assert all(record["predicted_s"] > 0 and record["measured_s"] > 0 for record in _events(tmp_path / "auto", "plan"))
    assert audit(str(tmp_path / "auto" / "run"), dataset_url=str(dataset)).finished
