"""What the doctor says of a machine: Java, memory, disk, shared memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pyspark
import pytest

from sparkring.conf.loading import load_config
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.diagnosis import survey
from sparkring.spark_jobs.diagnosis.machine import (
    check_disk,
    check_java,
    check_memory,
    check_shared_memory,
    gradient_mb,
    install_java,
    probe_file,
)
from sparkring.spark_jobs.diagnosis.needs import MB, RANK_MB, SPARK_MB, Needs
from tests.support.cell import JAVAS, RUNS_ON
from tests.support.doctor_samples import machine, needs
from tests.support.report_samples import sample_config, sample_manifest


class Usage(NamedTuple):
    """Of a disk, in bytes."""

    total: int
    used: int
    free: int


def java(folder: Path, says: str) -> Path:
    """A JAVA_HOME whose ``java -version`` says this."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n", encoding="utf-8")
    program.chmod(0o755)
    return folder


def test_no_java_fails_with_the_command_that_installs_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    check = check_java(needs())
    assert (check.status, check.found) == ("fail", f"no Java (PATH), Spark {pyspark.__version__} runs on {RUNS_ON}")
    assert "openjdk" in check.advice


@pytest.mark.parametrize(("says", "version"), [
    ('openjdk version "17.0.15" 2025-04-15', 17), ('openjdk version "21.0.1" 2023-10-17', 21), ('java version "1.8.0_392"', 8),
    ('openjdk version "11.0.2" 2019-01-15', 11), ("nothing of the kind", None)])
def test_only_the_releases_that_spark_runs_on_will_do(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, version: int | None) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, says)))
    check = check_java(needs())
    assert check.status == ("ok" if version in JAVAS else "fail")
    assert check.found.startswith(f"{f'Java {version}' if version else 'no Java'} (JAVA_HOME={tmp_path})")


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"JAVA_HOME={tmp_path}" in check_java(needs()).found


def test_java_is_not_needed_where_spark_runs_already_or_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java(needs(), running=True).status == "ok"
    assert check_java(needs("spark.remote=sc://far:15002", "spark.master=null")).status == "ok"
    assert check_java(needs("spark.master=null")).status == "fail", "the control"
    monkeypatch.setenv("SPARK_REMOTE", "sc://far:15002")
    assert check_java(needs("spark.master=null")).status == "ok"


@pytest.mark.parametrize(("release", "command"), [
    ("ID=debian\n", "apt-get install openjdk-17-jre-headless"),
    ('ID=ubuntu\nID_LIKE="debian"\n', "apt-get install openjdk-17-jre-headless"),
    ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install java-17-openjdk-headless"),
    ("ID=fedora\n", "dnf install java-21-openjdk-headless"), ("ID=alpine\n", "apk add openjdk17-jre-headless")])
def test_the_command_fits_the_distribution(tmp_path: Path, release: str, command: str) -> None:
    (tmp_path / "os-release").write_text(release, encoding="utf-8")
    assert install_java(tmp_path / "os-release", "linux") == command


def test_an_unknown_system_gets_two_commands_to_choose_from_and_a_mac_its_own(tmp_path: Path) -> None:
    assert install_java(tmp_path / "none", "linux").count("`") == 4
    assert install_java(platform="darwin") == "brew install openjdk@17"


def test_memory_is_compared_with_what_the_ranks_and_spark_take() -> None:
    job = needs("train.num_ranks=2", "train.lanes=24", "prepare.row_group_mb=10")
    needed_mb = SPARK_MB + 2 * RANK_MB + 24 * 10 * 2  # every lane has a row group open, once decoded and once in a batch
    assert check_memory(job, machine(free_mb=needed_mb)).status == "ok"
    assert check_memory(job, machine(free_mb=needed_mb - 1)).status == "warn"
    check = check_memory(job, machine(free_mb=needed_mb / 2 - 1))
    assert (check.status, f"{needed_mb:,}" in check.found, "train.num_ranks" in check.advice) == ("fail", True, True)


def test_ranks_that_run_elsewhere_need_no_memory_here() -> None:
    assert check_memory(needs("spark.master=yarn", "train.num_ranks=64"), machine(free_mb=SPARK_MB)).status == "ok"


def test_memory_grows_with_the_share_of_ranks_on_a_machine() -> None:
    job = needs("train.num_ranks=4", "train.lanes=24", "prepare.row_group_mb=1")
    assert job.memory_mb(4) - job.memory_mb(2) == pytest.approx(2 * RANK_MB + 24)


def test_rows_beyond_the_loaders_budget_need_no_memory_as_they_are_spilled() -> None:
    job = needs("train.num_ranks=2", "train.lanes=24", "prepare.row_group_mb=100", "train.memory_mb=500")
    assert job.memory_mb(2) == 2 * (RANK_MB + 500)


def test_the_limit_of_a_container_counts_when_it_is_lower(tmp_path: Path) -> None:
    group = tmp_path / "memory" / "box"
    group.mkdir(parents=True)
    for name, text in (("memory.limit_in_bytes", "1000"), ("memory.usage_in_bytes", "700"), ("memory.stat", "total_inactive_file 200\n")):
        (group / name).write_text(text, encoding="ascii")
    (tmp_path / "memory.max").write_text("max", encoding="ascii")
    (tmp_path / "memory.current").write_text("5", encoding="ascii")
    (tmp_path / "memory.stat").write_text("inactive_file 0\n", encoding="ascii")
    mine = tmp_path / "cgroup"
    mine.write_text("4:memory:/box\n3:cpu:/box\n0::/\n", encoding="ascii")
    assert survey._cgroup_room(tmp_path, mine) == [500]  # 1000 allowed, 700 used, of which 200 are page cache


def test_free_memory_is_some_and_less_than_all() -> None:
    total = 1024 * int(Path("/proc/meminfo").read_text(encoding="ascii").split()[1])
    assert 0 < survey.free_memory() < total


def test_disk_names_the_folder_that_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 3000 * MB))
    check = check_disk(needs(f"workspace={tmp_path / 'not' / 'yet'}"))
    assert (check.status, f"({tmp_path})" in check.found) == ("ok", True)
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(("free_mb", "status"), [(100, "fail"), (1000, "warn"), (3000, "ok")])
def test_little_room_on_disk_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_mb: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free_mb * MB))
    check = check_disk(needs(f"workspace={tmp_path}"))
    assert check.status == status
    assert ("--set workspace=" in check.advice) == (status != "ok")


def test_a_folder_that_cannot_be_written_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.access", lambda folder, _: folder != str(tmp_path))  # root may write anywhere
    check = check_disk(needs(f"workspace={tmp_path}"))
    assert (check.status, f"workspace: {tmp_path} cannot be written" in check.found) == ("fail", True)


def test_shared_memory_must_hold_the_gradients_of_all_ranks_of_the_host(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    Dataset(config.dataset).commit(sample_manifest())
    one_mb = gradient_mb(config)
    assert one_mb is not None
    job, exact = Needs.of(config), int(4 * one_mb * MB)
    assert check_shared_memory(job, machine(free_shared=exact + 1), ranks=4, config=config).status == "ok"
    check = check_shared_memory(job, machine(free_shared=exact - 1), ranks=4, config=config)
    assert (check.status, "--shm-size" in check.advice) == ("warn", True)


def test_gradients_are_as_large_as_the_parameters(tmp_path: Path) -> None:
    config = sample_config(tmp_path, model={"hidden": [4], "max_embedding": 1})
    assert gradient_mb(config) is None  # no dataset yet
    Dataset(config.dataset).commit(sample_manifest())
    embeddings, features = (6 + 4 + 91), 5 + 3  # three vocabularies of width 1; five numbers
    assert gradient_mb(config) == 4 * (embeddings + features * 4 + 4 + 4 + 1) / MB
    doubled = config.model_copy(update={"train": config.train.model_copy(update={"precision": "float64"})})
    assert gradient_mb(doubled) == pytest.approx(2 * (gradient_mb(config) or 0))


@pytest.mark.parametrize(("overrides", "ranks"), [(["train.ring.device=cuda"], 2), (["train.ring.shared_memory=false"], 2), ([], 1)])
def test_shared_memory_is_left_alone_where_it_is_not_used(overrides: list[str], ranks: int) -> None:
    check = check_shared_memory(needs(*overrides), machine(free_shared=0), ranks=ranks, config=load_config("local/flights", overrides))
    assert (check.status, check.found.startswith("not used")) == ("ok", True)


def test_a_witness_lies_in_the_workspace_while_it_is_asked_for(tmp_path: Path) -> None:
    with probe_file(needs("spark.master=yarn", f"workspace={tmp_path / 'later'}")) as file:
        assert file is not None
        assert Path(file).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("overrides", [["workspace=s3://bucket/x", "spark.master=yarn"], ["spark.master=local[2]"]])
def test_there_is_no_witness_where_none_can_be_or_none_is_needed(overrides: list[str]) -> None:
    with probe_file(needs(*overrides)) as file:
        assert file is None
