"""The cell of versions that this environment is, against the versions that are supported.

Older ones are refused, each for a reason; newer ones than were tried are only named. ``pyproject.toml`` asks for the same lower bounds, and
a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkring.spark_jobs.diagnosis.check import Check, Status, verdict
from sparkring.spark_jobs.diagnosis.packages import release
from sparkring.spark_jobs.diagnosis.survey import Machine
from sparkring.spark_jobs.spark.versions import supported

Release = tuple[int, ...]


@dataclass(frozen=True)
class Supported:
    """The releases of one package with which sparkring works."""

    first: Release
    untried: Release
    """The first of which nothing is known."""
    why: str
    """Why no older one will do."""


PYTHON = Supported((3, 11), (3, 15), "the code uses what came with Python 3.11, and Spark 4.3 asks for it")
PACKAGES = {
    "pyspark": Supported(supported.FIRST, (4, 4), "the launcher needs barrier stages over Arrow and job tags"),
    "pyarrow": Supported(supported.FIRST_ARROW, (27,), "a Parquet or Arrow file may run code in it (CVE-2023-47248)"),
    "numpy": Supported((1, 23), (3,), "the oldest for Python 3.11"),
    "torch": Supported((2, 6), (2, 16), "Horovod is built for no older one"),
}
"""Package -> its supported releases."""


def check_python(version: tuple[int, int], executable: str) -> Check:
    """Python of the driver."""
    found = f"Python {_text(version)} ({executable})"
    last = (PYTHON.untried[0], PYTHON.untried[1] - 1)
    wanted = f"expected {_text(PYTHON.first)} to {_text(last)}"
    advice = f"Make an environment with Python {_text(PYTHON.first)} to {_text(last)}."
    if version < PYTHON.first:
        return Check("Python", "fail", f"{found}, {wanted}: {PYTHON.why}", advice)
    if version >= PYTHON.untried:
        return Check("Python", "fail", f"{found}, {wanted}: Horovod and Petastorm were not tried on newer ones", advice)
    return Check("Python", "ok", found)


def check_cell(machine: Machine, *, spark: str, databricks: str | None = None) -> Check:
    """The versions of all packages that a platform brings.

    Args:
        machine: This one.
        spark: The version of PySpark here.
        databricks: The runtime of Databricks that this is, e.g. ``16.4``; None elsewhere.
    """
    versions = {"pyspark": spark} | {name: str(machine.packages[name].get("version", "")) for name in PACKAGES if name != "pyspark"}
    problems = [problem for name, found in versions.items() if found for problem in _problems(name, found)]
    platform = [f"Databricks Runtime {databricks}"] if databricks else []
    shown = ", ".join([*platform, f"Python {machine.python}", *(f"{name} {found}" for name, found in versions.items() if found)])
    return verdict("versions", [(status, f"{found}, of {shown}", advice) for status, found, advice in problems], fine=shown)


def _problems(name: str, version: str) -> list[tuple[Status, str, str]]:
    wanted = PACKAGES[name]
    if release(version) < wanted.first:
        return [("fail", f"{name} {version} is older than {_text(wanted.first)}: {wanted.why}",
                 f"Install {name} {_text(wanted.first)} or later, or use a platform that has it.")]
    if release(version) >= wanted.untried:
        return [("warn", f"{name} {version} is newer than what was tried (below {_text(wanted.untried)})",
                 f"If a job fails, install {name}<{_text(wanted.untried)}.")]
    return []


def _text(version: Release) -> str:
    return ".".join(map(str, version))
