"""Compute of Databricks without barrier stages is named with the way out, and properties that a session hides break nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from harness.datasets import write_dataset
from sparkring.conf.schema import SparkConfig
from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.doctor import CLUSTER_CHECKS, doctor
from sparkring.spark_jobs.ring import run_ring
from sparkring.spark_jobs.spark.databricks import RUNTIME, require_barrier_stages
from sparkring.spark_jobs.spark.session import spark_session
from sparkring.spark_jobs.spark.settings import setting
from sparkring.spark_jobs.train import train
from tests.support import seams
from tests.support.doctor_samples import machine
from tests.support.training import train_config


def session(version: str = "4.0.0", *, condition: str = "CONFIG_NOT_AVAILABLE") -> SparkSession:
    """A session over Connect that raises this condition for each property, as serverless compute does."""
    def get(key: str, default: str | None = None) -> NoReturn:
        raise AnalysisException(f"[{condition}] Configuration {key} is not available. SQLSTATE: 42K0I")

    attributes = {"__module__": "pyspark.sql.connect.session", "version": version, "conf": SimpleNamespace(get=get)}
    return cast("SparkSession", type("Session", (), attributes)())


@pytest.fixture(params=["on Databricks", "by databricks-connect"])
def remedy(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is advised to a process there, or to one elsewhere that has Databricks' client."""
    if request.param == "on Databricks":
        monkeypatch.setenv(RUNTIME, "16.4")
        return "use a cluster in dedicated (single user) access mode, or a job on one."
    monkeypatch.delenv(RUNTIME, raising=False)
    record = tmp_path / "site" / "databricks_connect-16.4.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: databricks-connect\nVersion: 16.4.0\n", encoding="ascii")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return "run this on the cluster itself, one in dedicated (single user) access mode, in a notebook or as a job."


@pytest.mark.parametrize("version", ["3.5.2", "4.0.0"])
def test_a_ring_is_refused_there_whatever_its_spark(remedy: str, version: str) -> None:
    with pytest.raises(EnvironmentProblem, match="no SparkContext and no barrier stages") as refused:
        run_ring(print, num_ranks=1, spark=session(version))
    assert refused.value.remedy == remedy


def test_a_spark_whose_connect_is_too_old_is_refused_there_with_the_same_remedy(remedy: str) -> None:
    with pytest.raises(EnvironmentProblem) as refused:
        spark_session(SparkConfig(), app_name="test", given=session("3.5.2"))
    assert refused.value.remedy == remedy
    newer = session("4.0.0")
    assert spark_session(SparkConfig(), app_name="test", given=newer) is newer, "prepare and score need no barrier stages"


def test_a_run_is_refused_there_before_the_session_is_asked_for_slots(tmp_path: Path, remedy: str) -> None:
    write_dataset(tmp_path / "dataset", ([400, 300], [500]))
    config = train_config(tmp_path / "workspace", dataset_url=str(tmp_path / "dataset"), train={"epochs": 1})
    with pytest.raises(EnvironmentProblem) as refused:
        train(config, spark=session())
    assert refused.value.remedy == remedy
    assert not [file for file in (tmp_path / "workspace").rglob("*") if file.is_file() and file.name != ".lock"]


def test_the_doctor_says_so_and_asks_the_session_nothing_more(remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.DOCTOR_THIS_MACHINE, machine)
    checks = {check.name: check for check in doctor(None, spark=session("3.5.2"))}
    assert (checks["Spark"].status, checks["Spark"].advice) == ("fail", remedy[0].upper() + remedy[1:])
    assert {checks[name].status for name in CLUSTER_CHECKS} == {"warn"}


def test_the_doctor_looks_at_a_session_that_hides_its_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUNTIME, raising=False)
    monkeypatch.setattr(seams.DOCTOR_THIS_MACHINE, machine)
    status = {check.name: check.status for check in doctor(None, spark=session())}
    assert {status[name] for name in ("Spark", "Spark settings", "slots", "encryption")} == {"ok"}


def test_a_hidden_property_counts_as_not_set_and_another_error_is_raised() -> None:
    assert setting(session(), "spark.master") is None
    with pytest.raises(AnalysisException, match="SESSION_CLOSED"):
        setting(session(condition="SESSION_CLOSED"), "spark.master")


def test_control_connect_elsewhere_is_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUNTIME, raising=False)
    require_barrier_stages(session())
    with pytest.raises(EnvironmentProblem, match=r"found Spark Connect 3\.5\.2, .*; use a classic session"):
        run_ring(print, num_ranks=1, spark=session("3.5.2"))
