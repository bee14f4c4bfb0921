"""The shipped jobs by ``sparkring train`` on local[4]: the flights network and a decoder, in two stages of two and as the planner says.

Each trains the weights that one rank does. On a standalone master: tests/e2e/test_standalone_master.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from harness.small_configs import TWO_OF_TWO, january_flights, three_packages
from sparkring.pipelines.training.events.writer import Record, read_events
from sparkring.spark_jobs.auto_layout import PROFILE
from sparkring.spark_jobs.stored.audit import audit
from tests.support.command_line import said
from tests.support.runs import only_run
from tests.support.training import largest_difference, weights_of_run

pytest_plugins = ["tests.support.spark_sessions"]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

LAYOUTS: dict[str, dict[str, Any]] = {
    "alone": {"num_ranks": 1}, "two of two": TWO_OF_TWO, "auto": {"num_ranks": 4, "parallel": "auto"}}


def _events(run: Path, kind: str) -> list[Record]:
    return [record for record in read_events(str(run)) if record["event"] == kind]


@pytest.mark.parametrize("name", ["flights", "text"])
def test_two_stages_of_two_and_what_the_planner_chooses_train_as_one_rank_does(spark: SparkSession, tmp_path: Path, name: str) -> None:
    make = january_flights if name == "flights" else three_packages
    config = make(tmp_path, precision="float64", lanes=24)
    said("prepare", config)
    runs, workspaces = {}, {}
    for layout, section in LAYOUTS.items():
        workspace = workspaces[layout] = tmp_path / layout.replace(" ", "-")
        settings = {"workspace": workspace, "dataset_url": tmp_path / name / "dataset",
                    **{f"train.{key}": json.dumps(value) for key, value in section.items()}}
        trained = said("train", config, *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")))
        assert " steps, 1 epochs (trained)" in trained
        runs[layout] = only_run(workspace)
        assert audit(str(runs[layout])).finished
    for layout in ("two of two", "auto"):
        assert largest_difference(weights_of_run(workspaces[layout]), weights_of_run(workspaces["alone"])) < 1e-10, layout
    assert sorted(record["worker"] for record in _events(runs["two of two"], "timeline")) == [[0, 0], [0, 1], [1, 0], [1, 1]]
    document = json.loads((runs["auto"] / PROFILE).read_text(encoding="utf-8"))
    assert len(document["ranks"]) == 4, "four ranks were measured"
    assert {record["size"] for record in _events(runs["auto"], "start")} == {document["chosen"]["num_ranks"]}
    told = _events(runs["auto"], "plan")
    assert told
    assert all(record["predicted_s"] > 0 and record["measured_s"] > 0 for record in told)
    drawn = said("schedule", config, "--set", f"workspace={workspaces['two of two']}")
    assert "1f1b over 2 stages of 2+2 replicas, 8 micro-batches" in drawn
    assert "idle (plan)  idle (measured)" in drawn
