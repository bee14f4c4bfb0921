"""Secrets in the environment of commands that fail or only print are nowhere; those of whole jobs: test_standalone_master.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.etl_tables import COLUMNS, etl_config
from tests.support.planted import PLANTED, secrets_found, watched
from tests.support.ring_driver import ROOT, bytecode
from tests.support.training import await_condition


@pytest.mark.timeout(600)
def test_planted_secrets_are_nowhere_in_what_a_broken_source_and_a_submission_write_say_and_show(tmp_path: Path) -> None:
    config = etl_config(tmp_path).model_dump(mode="json", exclude_unset=True) | {"spark": {
        "master": "local[2]", "conf": {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(tmp_path / "spark-events"),
                                       "spark.eventLog.compress": "false", "spark.driver.memory": "1g"}}}
    shop = {"format": "jdbc", "url": "jdbc:none://host/shop", "query": "SELECT 1", "columns": COLUMNS, "user_env": "SHOP_USER",
            "password_env": "SHOP_PASSWORD"}
    broken = tmp_path / "broken.yaml"
    broken.write_text(yaml.safe_dump(config | {"prepare": config["prepare"] | {"sources": {"trips": shop}}}), encoding="utf-8")
    (tmp_path / "spark-events").mkdir()
    environment = {**os.environ, **PLANTED, **bytecode(tmp_path), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    said, shown, codes = "", set[str](), []
    for command in (["prepare", str(broken)], ["submit", str(broken), "--print", "--set", "spark.master=yarn"]):
        with subprocess.Popen([sys.executable, "-m", "sparkring", *command], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) as process:
            with watched(process.pid) as lines:
                said += process.communicate(timeout=300)[0]
            shown |= lines
            codes.append(process.returncode)
    assert codes == [2, 0], said[-4000:]
    assert "source trips: " in said  # the broken one ended in its own words, with both secrets at hand
    assert "spark-submit" in said
    assert any("java" in line for line in shown)
    assert any("spark-events" in path.parts and path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert secrets_found(said=said, shown=shown, folder=tmp_path) == set()


def test_control_a_secret_in_the_process_list_in_the_output_and_in_a_file_is_found(tmp_path: Path) -> None:
    secret = PLANTED["SHOP_PASSWORD"]
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", secret], stdin=subprocess.PIPE) as process:
        with watched(process.pid) as shown:
            await_condition(lambda: any(secret in line for line in list(shown)), "a look at the process list")
        process.communicate(timeout=30)
    (tmp_path / "log.txt").write_text(f"password={secret}", encoding="ascii")
    assert secrets_found(said=f"said {secret}", shown=shown, folder=tmp_path) == {
        ("SHOP_PASSWORD", where) for where in ("output", "process list", "log.txt")}
