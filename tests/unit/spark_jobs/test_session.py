"""Java is looked for before Spark is started, and what is missing is named with the command that installs it."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from pyspark.errors import PythonException

from sparkring.conf.schema import SparkConfig
from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.spark.errors import reason
from sparkring.spark_jobs.spark.session import java_version, remote_address, require_java, spark_path, spark_session, without_secrets
from tests.support.cell import RUNS_ON, needs_connect

FOUND = {"17": 'openjdk version "17.0.15" 2025-04-15', "21": 'openjdk version "21" 2023-09-19', "8": 'java version "1.8.0_402"',
         "11": 'openjdk version "11.0.22" 2024-01-16', "9": 'java version "9.0.4"'}


def _install(home: Path, says: str) -> None:
    """A program at JAVA_HOME/bin/java that reports a version as Java does, on stderr."""
    program = home / "bin/java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize(("release", "version"), [("17", 17), ("21", 21), ("11", 11), ("8", 8)])
def test_the_java_of_java_home_is_asked_for_its_version(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, version: int) -> None:
    _install(tmp_path, FOUND[release])
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_version() == version


@pytest.mark.parametrize(("release", "found"), [("9", "found Java 9 in JAVA_HOME="), (None, "found none in JAVA_HOME=")])
def test_an_unsuitable_java_is_refused_before_spark_starts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, found: str) -> None:
    if release:
        _install(tmp_path, FOUND[release])
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=f"{found}.*, Spark needs Java {RUNS_ON}; install one .*openjdk-17-jre-headless"):
        spark_session(SparkConfig(master="local[1]"), app_name="test")


def test_no_java_at_all_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=f"found none on PATH, Spark needs Java {RUNS_ON}"):
        require_java()


@needs_connect
def test_a_connect_address_in_the_environment_needs_no_java_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002/x")  # Connect refuses a path
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # pyspark sets it, and it is to be gone after the test
    with pytest.raises(EnvironmentProblem, match="no Spark session on sc://host:15002/x: "):
        spark_session(SparkConfig(), app_name="test")
    assert remote_address(SparkConfig(master="local[1]")) is None, "a master that is asked for runs here"


@needs_connect
@pytest.mark.parametrize("address", [
    pytest.param("sc://host:15002/x/;token=hunter2;use_ssl=true", id="a path, which Connect refuses"),
    pytest.param("sc://host:15002/;token=hunter2==", id="an = in the token"),
    pytest.param("sc://host:15002/;hunter2", id="a parameter without a name"),
    pytest.param("sc://host:15002;token=hunter2", id="no / before the parameters"),
    pytest.param("sc://etl:hunter2@host:15002", id="a user and a password"),
    pytest.param("sc://etl:hunter%32@host:15002/;x-tenant=hunter2", id="a header of one's own")])
def test_what_is_secret_in_a_connect_address_is_in_no_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # pyspark sets it, and it is to be gone after the test
    with pytest.raises(EnvironmentProblem, match=r"no Spark session on sc://.*host:15002.*\*\*\*|\*\*\*@host:15002") as raised:
        spark_session(SparkConfig(remote=address), app_name="test")
    assert "hunter" not in "".join(traceback.format_exception(raised.value))


def test_what_is_no_secret_in_an_address_stays() -> None:
    for address in ("spark://host:7077", "local[2]", "sc://host/;user_id=ann@example.org;use_ssl=true", "yarn", ""):
        assert without_secrets(f"on {address}: no", address) == f"on {address}: no"
    shown = without_secrets("sc://host/;token=a%2Fb;user_id=ann: a/b", "sc://host/;token=a%2Fb;user_id=ann")
    assert shown == "sc://host/;token=***;user_id=ann: ***"


def test_spark_is_told_that_a_path_is_the_drivers_own_but_for_databricks_mounts() -> None:
    assert spark_path("/mnt/a b/data") == "file:/mnt/a b/data"
    assert spark_path("/Volumes/main/default/data") == "/Volumes/main/default/data"


def test_of_sparks_complaint_the_line_that_says_why_is_kept() -> None:
    assert reason(Exception("\n[PARSE_SYNTAX_ERROR] Syntax error at 'x'.  SQLSTATE: 42601 (line 1)\n\n== SQL ==\nx")) == \
        "[PARSE_SYNTAX_ERROR] Syntax error at 'x'. SQLSTATE: 42601 (line 1)"
    assert reason(Exception("An error occurred while calling o1.x.\n: java.io.IOException: no host.\n\tat a.b(c:1)")) == \
        "java.io.IOException: no host"
    failed = ("An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage "
              "2.0 failed 1 times, most recent failure: Lost task 0.0 in stage 2.0 (TID 17) (10.0.0.2 executor driver): ")
    assert reason(Exception(f"{failed}org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero.\n\tat a.b(c:1)")) == \
        "[DIVIDE_BY_ZERO] Division by zero"
    assert reason(Exception(f"{failed}java.lang.IllegalArgumentException: a unit.\n\tat a")) == "java.lang.IllegalArgumentException: a unit"
    assert reason(ValueError("")) == "ValueError"


def test_of_an_exception_in_a_python_worker_the_reason_is_what_it_says() -> None:
    text = ("\n  An exception was thrown from the Python worker. Please see the stack trace below.\nTraceback (most recent call last):\n"
            '  File "arrays.py", line 3, in stored_column\n    raise ValueError(x)\nValueError: column x holds 2 nulls\n')
    assert reason(PythonException(text)) == "column x holds 2 nulls"

