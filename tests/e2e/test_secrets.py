"""Secrets that a job has in its environment are nowhere in what it writes, says or shows in the list of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.support.attackers import command_lines
from tests.support.etl_tables import COLUMNS, etl_config
from tests.support.ring_driver import ROOT, bytecode

PLANTED = {name: f"planted-{name.lower()}-7f3a" for name in (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "SHOP_USER", "SHOP_PASSWORD", "DATABRICKS_TOKEN")}
LOOK_EVERY_S = 0.1


@contextmanager
def watched(pid: int) -> Iterator[list[str]]:
    """The command lines of a process and its descendants while the block runs."""
    seen: set[str] = set()
    lines: list[str] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_EVERY_S):
            seen.update(command_lines(pid).splitlines())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield lines
    finally:
        over.set()
        watcher.join(30)
        lines.extend(seen)


@pytest.mark.timeout(600)
def test_planted_secrets_are_nowhere_in_what_a_job_writes_says_and_shows(tmp_path: Path) -> None:
    config = etl_config(tmp_path).model_dump(mode="json", exclude_unset=True) | {
        "train": {"epochs": 1, "batch_rows": 64, "record_rows": True},
        "spark": {"master": "local[2]", "conf": {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(tmp_path / "spark-events"),
                                                 "spark.eventLog.compress": "false", "spark.driver.memory": "1g"}}}
    shop = {"format": "jdbc", "url": "jdbc:none://host/shop", "query": "SELECT 1", "columns": COLUMNS, "user_env": "SHOP_USER",
            "password_env": "SHOP_PASSWORD"}
    broken = config | {"workspace": str(tmp_path / "broken"), "prepare": config["prepare"] | {"sources": {"trips": shop}}}
    for name, document in (("good", config), ("broken", broken)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    (tmp_path / "spark-events").mkdir()
    good = str(tmp_path / "good.yaml")
    commands = [["prepare", good], ["train", good], ["evaluate", good], ["score", good], ["report", good]]
    submit = [sys.executable, "-m", "sparkring", "submit", good, "--print", "--set", "spark.master=yarn"]
    prepare = [sys.executable, "-m", "sparkring", "prepare", str(tmp_path / "broken.yaml")]
    environment = {**os.environ, **PLANTED, **bytecode(tmp_path), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    said, shown, codes = "", [], []
    for command in ([sys.executable, "-m", "tests.support.commands_main", json.dumps(commands)], prepare, submit):
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True) as process:
            with watched(process.pid) as lines:
                said += process.communicate(timeout=300)[0]
            shown += lines
            codes.append(process.returncode)
    assert codes == [0, 2, 0], said[-4000:]
    assert "source trips: " in said  # the broken one ended in its own words, with both secrets at hand
    assert "spark-submit" in said
    assert any("java" in line for line in shown)
    assert any("sparkring.spark_jobs.launch.rank.main" in line for line in shown)
    found = {(name, "output") for name, secret in PLANTED.items() if secret in said}
    found |= {(name, "process list") for name, secret in PLANTED.items() if any(secret in line for line in shown)}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"report.html", "model.json", "0-0.jsonl", "1.json"} <= {path.name for path in written}
    assert any("spark-events" in path.parts and path.stat().st_size for path in written)
    for path in written:
        data = path.read_bytes()
        found |= {(name, str(path.relative_to(tmp_path))) for name, secret in PLANTED.items() if secret.encode() in data}
    assert found == set()


def test_the_look_at_the_process_list_sees_a_secret_there(tmp_path: Path) -> None:
    secret = PLANTED["SHOP_PASSWORD"]  # the control
    ready = tmp_path / "ready"
    code = f"import pathlib, sys; pathlib.Path({str(ready)!r}).touch(); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, secret], stdin=subprocess.PIPE) as process, watched(process.pid) as lines:
        while not ready.exists():
            assert process.poll() is None
        assert secret in command_lines(process.pid)
        process.communicate(timeout=30)
    assert isinstance(lines, list)
