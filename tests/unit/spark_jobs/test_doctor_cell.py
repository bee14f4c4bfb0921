"""What the doctor says of the versions that it finds: the cell, and why one that is not supported will not do."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from sparkring.spark_jobs.diagnosis.cell import PACKAGES, PYTHON, check_cell, check_python
from tests.support.doctor_samples import machine

PROJECT = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def test_the_cell_is_named() -> None:
    check = check_cell(machine(), spark="4.0.5")
    assert (check.status, check.found) == ("ok", "Python 3.11.7, pyspark 4.0.5, pyarrow 14.0.2, numpy 1.26.4, torch 2.13.0")
    assert check_cell(machine(), spark="3.5.2", databricks="16.4").found.startswith("Databricks Runtime 16.4, Python 3.11.7, pyspark 3.5.2")


@pytest.mark.parametrize(("version", "status", "words"), [
    ((3, 10), "fail", "expected 3.11 to 3.14: the code uses what came with Python 3.11"), ((3, 11), "ok", "Python 3.11 (/p)"),
    ((3, 14), "ok", "Python 3.14 (/p)"), ((3, 15), "fail", "expected 3.11 to 3.14: Horovod and Petastorm were not tried")])
def test_a_python_that_is_not_supported_is_refused_with_the_reason(version: tuple[int, int], status: str, words: str) -> None:
    check = check_python(version, "/p")
    assert (check.status, words in check.found) == (status, True), check


@pytest.mark.parametrize(("package", "version", "status", "words"), [
    ("pyarrow", "14.0.0", "fail", "pyarrow 14.0.0 is older than 14.0.1: a Parquet or Arrow file may run code in it (CVE-2023-47248)"),
    ("pyarrow", "14.0.1", "ok", "pyarrow 14.0.1"), ("pyarrow", "26.0.1", "ok", "pyarrow 26.0.1"),
    ("pyarrow", "27.0.0.dev1", "warn", "pyarrow 27.0.0.dev1 is newer than what was tried (below 27)"),
    ("numpy", "1.22.4", "fail", "numpy 1.22.4 is older than 1.23"), ("numpy", "2.4.0", "ok", "numpy 2.4.0"),
    ("torch", "2.5.1+cu124", "fail", "torch 2.5.1+cu124 is older than 2.6: Horovod is built for no older one"),
    ("torch", "2.15.0+cpu", "ok", "torch 2.15.0+cpu")])
def test_a_package_is_refused_if_it_is_too_old_and_named_if_it_is_newer_than_any_that_was_tried(
        package: str, version: str, status: str, words: str) -> None:
    check = check_cell(machine(packages={package: {"version": version}}), spark="4.0.5")
    assert (check.status, words in check.found) == (status, True), check


def test_an_old_spark_is_refused_with_the_cell_it_was_found_in() -> None:
    check = check_cell(machine(), spark="3.4.4")
    assert (check.status, check.found.partition(", of ")) == ("fail", (
        "pyspark 3.4.4 is older than 3.5: the launcher needs barrier stages over Arrow and job tags", ", of ",
        "Python 3.11.7, pyspark 3.4.4, pyarrow 14.0.2, numpy 1.26.4, torch 2.13.0"))


def test_a_package_that_cannot_be_imported_is_left_to_its_own_check() -> None:
    check = check_cell(machine(packages={"torch": {"error": "ModuleNotFoundError: No module named 'torch'"}}), spark="4.0.5")
    assert (check.status, "torch" in check.found) == ("ok", False)


def test_pip_is_asked_for_the_same_bounds() -> None:
    entries = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["spark"] + PROJECT["optional-dependencies"]["train"]
    asked = {one.name: str(one.specifier) for one in map(Requirement, entries)}
    assert {name: asked[name] for name in PACKAGES} == {name: f">={text(each.first)}" for name, each in PACKAGES.items()}
    assert SpecifierSet(PROJECT["requires-python"]) == SpecifierSet(f">={text(PYTHON.first)},<{text(PYTHON.untried)}")


def test_each_python_that_pip_takes_is_named_in_the_index() -> None:
    named = {entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if entry.startswith("Programming Language :: Python :: 3.")}
    taken = SpecifierSet(PROJECT["requires-python"])
    assert named == {f"3.{minor}" for minor in range(30) if taken.contains(Version(f"3.{minor}.1"))}
