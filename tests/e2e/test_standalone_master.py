"""Whole jobs on a standalone Spark master with two worker processes: executors are other processes than the driver.

The main job on a month of flights, run twice, then the same network in two stages of two, by one cluster and one session, with
secrets in their environment that must show nowhere. Nightly: a decoder in stages, and both as the planner says.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.dataset as pa_dataset
import pytest

from harness.small_configs import TWO_OF_TWO, january_flights, three_packages
from sparkring.pipelines.training.events.writer import Record, read_events
from sparkring.spark_jobs.auto_layout import PROFILE
from sparkring.spark_jobs.stored.audit import audit
from tests.support.planted import PLANTED, secrets_found, watched
from tests.support.ring_driver import ROOT, bytecode
from tests.support.runs import only_run
from tests.support.spark_cluster import standalone
from tests.support.training import largest_difference, weights_of_run

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Ran:
    """What commands on a cluster left, said and showed."""

    folder: Path
    stdout: str
    stderr: str
    shown: set[str]
    """Command lines of all their processes, the cluster's included."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The main job twice in the workspace ``flights``, then ``staged``, with planted secrets in their environment."""
    folder = tmp_path_factory.mktemp("cluster")
    flights = january_flights(folder, record_rows=True)
    in_stages = {"workspace": folder / "staged", "dataset_url": folder / "flights" / "dataset", "train.num_ranks": TWO_OF_TWO["num_ranks"],
                 "train.parallel": json.dumps(TWO_OF_TWO["parallel"])}
    return _on_a_cluster(folder, ["demo", flights], ["demo", flights], ["train", flights, *_set(in_stages)], within_s=500)


@pytest.fixture(scope="module")
def runs(ran: Ran) -> Path:
    """The folder of the workspaces ``flights`` and ``staged``."""
    return ran.folder


def _on_a_cluster(folder: Path, *commands: list[str], within_s: float) -> Ran:
    """Run commands one after the other, in one session."""
    events = folder / "spark-events"
    events.mkdir()
    with patch.dict(os.environ, PLANTED), watched(os.getpid()) as shown, standalone(folder, gpus=("0", "1"), cores=2) as master:
        here = _set({"spark.master": master, "spark.conf.spark.executor.memory": "900m", "spark.conf.spark.driver.host": "127.0.0.1",
                     "spark.conf.spark.driver.bindAddress": "127.0.0.1", "spark.conf.spark.sql.shuffle.partitions": 4,
                     "spark.conf.spark.eventLog.enabled": "true", "spark.conf.spark.eventLog.dir": events,
                     "spark.conf.spark.eventLog.compress": "false"})
        ended = subprocess.run(
            [sys.executable, "-m", "tests.support.commands_main", json.dumps([[*command, *here] for command in commands])], cwd=folder,
            env={**os.environ, **bytecode(folder), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=within_s, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return Ran(folder, ended.stdout, ended.stderr, shown)


def _set(values: dict[str, Any]) -> list[str]:
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


def _events(workspace: Path, kind: str) -> list[Record]:
    return [record for record in read_events(str(only_run(workspace))) if record["event"] == kind]


def test_the_main_job_runs_on_separate_worker_processes(runs: Path) -> None:
    workspace = runs / "flights"
    assert [(record["rank"], record["size"], record["reduction"]) for record in _events(workspace, "start")] == [
        (0, 2, "shared memory"), (1, 2, "shared memory")]
    assert [record["exact"] for record in _events(workspace, "epoch")] == [True]
    evaluation = json.loads((only_run(workspace) / "evaluation.json").read_text(encoding="utf-8"))
    assert evaluation["network"]["auc"] > evaluation["base_rate"]["auc"]
    assert (only_run(workspace) / "report.html").stat().st_size > 10_000


def test_a_second_demo_reuses_what_the_first_one_made_and_says_so(ran: Ran) -> None:
    workspace = ran.folder / "flights"
    places = re.findall(r"^  (dataset|model|scores|report) +(\S+)(.*)$", ran.stdout, flags=re.MULTILINE)
    assert [place[0] for place in places if "(reused)" in place[2]] == ["dataset", "model", "scores"]
    assert {place[0] for place in places} == {"dataset", "model", "scores", "report"}
    for _, place, _ in places:
        assert Path(place.removeprefix("file://")).exists(), place
        assert str(workspace) in place
    evaluation = json.loads((only_run(workspace) / "evaluation.json").read_text(encoding="utf-8"))
    assert pa_dataset.dataset(only_run(workspace) / "scores", format="parquet").count_rows() == evaluation["network"]["rows"] > 3_000
    page = (only_run(workspace) / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", page), "the report loads nothing from elsewhere"


def test_planted_secrets_are_nowhere_in_what_jobs_write_say_and_show(ran: Ran) -> None:
    written = [path for path in ran.folder.rglob("*") if path.is_file()]
    assert {"report.html", "model.json", "0-0.jsonl", "1.json"} <= {path.name for path in written}
    assert any("spark-events" in path.parts and path.stat().st_size for path in written)
    assert any("java" in line for line in ran.shown)
    assert any("sparkring.spark_jobs.launch.rank" in line for line in ran.shown)
    assert secrets_found(said=ran.stdout + ran.stderr, shown=ran.shown, folder=ran.folder) == set()


def test_two_stages_of_two_train_on_separate_worker_processes(runs: Path) -> None:
    _require_two_of_two(runs / "staged", runs / "flights" / "dataset")


@pytest.mark.nightly
def test_a_decoder_in_two_stages_of_two_trains_on_separate_worker_processes(tmp_path: Path) -> None:
    text = three_packages(tmp_path, **TWO_OF_TWO)
    _on_a_cluster(tmp_path, ["prepare", text], ["train", text], within_s=500)
    _require_two_of_two(tmp_path / "text", tmp_path / "text" / "dataset")


def _require_two_of_two(workspace: Path, dataset: Path) -> None:
    assert [(record["rank"], record["size"], record["readers"]) for record in _events(workspace, "start")] == [
        (rank, 4, 2) for rank in range(4)]
    assert [record["exact"] for record in _events(workspace, "epoch")] == [True]
    assert sorted(record["worker"] for record in _events(workspace, "timeline")) == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert audit(str(only_run(workspace)), dataset_url=str(dataset)).finished
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
    document = json.loads((only_run(tmp_path / "auto") / PROFILE).read_text(encoding="utf-8"))
    assert len(document["ranks"]) == 4, "four ranks were measured"
    assert {record["size"] for record in _events(tmp_path / "auto", "start")} == {document["chosen"]["num_ranks"]}
    assert all(record["predicted_s"] > 0 and record["measured_s"] > 0 for record in _events(tmp_path / "auto", "plan"))
    assert audit(str(only_run(tmp_path / "auto")), dataset_url=str(dataset)).finished
