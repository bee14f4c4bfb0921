"""The doctor on real Spark: as a user runs it, each time in a process of its own, since a session's master cannot change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.spark_cluster import standalone


@dataclass(frozen=True)
class Findings:
    """What one call of ``sparkring doctor --json`` said."""

    code: int
    status: dict[str, str]
    found: dict[str, str]
    advice: dict[str, str]


def doctor(folder: Path, *overrides: str, **environment: str) -> Findings:
    """Of the shipped local job, through the command line."""
    settings = [part for override in (f"workspace={folder / 'workspace'}", *overrides) for part in ("--set", override)]
    return findings("-m", "sparkring", "doctor", "local/flights", "--json", *settings, cwd=folder, **environment)


def findings(*arguments: str, cwd: Path, **environment: str) -> Findings:
    ended = subprocess.run([sys.executable, *arguments], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=280,
                           check=False)
    assert ended.stdout, ended.stderr
    checks = json.loads(ended.stdout)
    return Findings(ended.returncode, *({check["name"]: check[key] for check in checks} for key in ("status", "found", "advice")))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return doctor(tmp_path_factory.mktemp("healthy"))


def test_this_machine_can_run_the_main_job(healthy: Findings) -> None:
    """If this fails, its message says what this machine lacks for the other tests."""
    assert {name: (healthy.found[name], healthy.advice[name]) for name, status in healthy.status.items() if status == "fail"} == {}
    assert healthy.code == 0
    assert list(healthy.status) == [
        "Java", "Python", "versions", "PyTorch", "Horovod", "Petastorm", "memory", "disk", "storage", "sources",
        "Spark", "Spark settings", "slots",
        "executors", "executor memory", "network", "query", "shared memory", "GPU", "encryption"]


def test_the_tasks_look_at_their_python_and_reach_each_other(healthy: Findings) -> None:
    assert "2 task(s) on" in healthy.found["executors"]
    assert "Horovod 0.28.1 with Gloo" in healthy.found["executors"]
    assert healthy.found["network"].startswith("2 task(s) reach each other at 127.0.0.1 (lo)")


def test_without_java_everything_else_is_looked_at_all_the_same(tmp_path: Path) -> None:
    """Asked as a plain function, without a config."""
    code = ("import dataclasses, json\nfrom sparkring.spark_jobs.doctor import doctor\n"
            "print(json.dumps([dataclasses.asdict(check) for check in doctor(None)]))")
    found = findings("-c", code, cwd=tmp_path, JAVA_HOME=str(tmp_path / "none"))
    assert (found.status["Java"], found.status["Spark"]) == ("fail", "fail")
    assert "JAVA_HOME" in found.found["Java"]
    assert "17" in found.advice["Java"]
    assert {found.status[name] for name in ("Python", "PyTorch", "Horovod", "Petastorm")} == {"ok"}
    assert {found.status[name] for name in ("Spark settings", "slots", "executors", "network")} == {"warn"}


def test_executors_without_sparkring_too_few_slots_and_missing_gpus_are_all_told_at_once(tmp_path: Path) -> None:
    """Executors run a Python that finds another sparkring first, one that cannot be imported."""
    shadow = tmp_path / "shadow" / "sparkring"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise ImportError('no sparkring on this executor')\n", encoding="utf-8")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shadow.parent}:$PYTHONPATH exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    found = doctor(tmp_path, "spark.master=local[1]", "spark.conf.spark.speculation=true", "train.ring.device=cuda",
                   PYSPARK_PYTHON=str(python))
    assert found.code == 1
    assert found.status["executors"] == "fail"
    assert "sparkring cannot be imported" in found.found["executors"]
    assert "no sparkring on this executor" in found.found["executors"]
    assert found.status["slots"] == "fail"
    assert "1 of the 2 free slots needed" in found.found["slots"]
    assert "train.num_ranks" in found.advice["slots"]
    assert found.status["Spark settings"] == "warn"
    assert found.status["network"] == "warn"  # the tasks could not run at once, so nobody knows
    assert (found.status["GPU"], "this machine has no GPUs" in found.found["GPU"]) == ("fail", True)


@pytest.mark.nightly
def test_executors_of_a_cluster_reach_each_other_see_the_workspace_and_have_the_gpus_that_spark_gave_them(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers whose discovery scripts report GPUs that are not there."""
    for name, value in (("CUDA_VISIBLE_DEVICES", ""), ("SPARK_LOCAL_IP", "127.0.0.1"), ("PYSPARK_PYTHON", sys.executable)):
        monkeypatch.setenv(name, value)
    conf = {"executor.memory": "512m", "executor.cores": 1, "cores.max": 2, "executor.resource.gpu.amount": 1}
    with standalone(tmp_path, gpus=("3", "5")) as master:
        found = doctor(tmp_path, f"spark.master={master}", "train.ring.device=cuda", "train.ring.allow_cpu_fallback=true",
                       *(f"spark.conf.spark.{key}={value}" for key, value in conf.items()))
    assert found.code == 0
    assert (found.status["executors"], found.found["executors"][:10]) == ("ok", "2 task(s) ")
    assert found.found["network"].startswith("2 task(s) reach each other")
    assert (found.status["GPU"], found.found["GPU"].startswith("torch sees no GPU on ")) == ("warn", True)
    assert not list(tmp_path.glob(".sparkring-doctor-*"))
