"""The wheels of `make wheels` in an empty environment, by plain pip: they install, agree with each other, and train.

What users of pip, YARN and Databricks get, since none of them builds from this checkout. Plain pip decides which packages and
versions come with them; those that are the same here are linked instead of downloaded and unpacked (6 GB, minutes).
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.configs import MINIMAL, write
from tests.support.linked_packages import link_packages, normalised

ROOT = Path(__file__).resolve().parents[2]
ROWS = 3_000
OURS = ("horovod", "petastorm", "sparkring")

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def wheels() -> list[Path]:
    subprocess.run(["make", "wheels"], cwd=ROOT, check=True, timeout=900)
    return sorted((ROOT / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of a new environment that holds the wheels and what plain pip chooses to come with them."""
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    interpreter = folder / "bin" / "python"
    chosen = what_pip_chooses(interpreter, wheels)
    link_packages(site_packages(interpreter), chosen, without=OURS)
    exactly = [f"{name}=={version}" for name, version in chosen.items() if name not in OURS]
    run(interpreter, "-m", "pip", "install", "--quiet", "--no-compile", *in_this_cell(wheels, folder), *exactly, cwd=folder, timeout=1100)
    yield interpreter
    shutil.rmtree(folder)


def what_pip_chooses(interpreter: Path, wheels: list[Path]) -> dict[str, str]:
    """Name -> version of all that plain pip would install into the empty environment for the wheels."""
    run(interpreter, "-m", "pip", "install", "--quiet", "--upgrade", "pip", cwd=interpreter.parent)  # older ones download to know
    told = run(interpreter, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-",
               *in_this_cell(wheels, interpreter.parent), cwd=interpreter.parent, timeout=1100)
    return {normalised(entry["metadata"]["name"]): entry["metadata"]["version"] for entry in json.loads(told)["install"]}


def in_this_cell(wheels: list[Path], folder: Path) -> list[str]:
    """The wheels, ours with all that an empty environment lacks, and the versions of this checkout: Horovod is built for its torch."""
    cell = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["uv"]["constraint-dependencies"]
    (folder / "cell.txt").write_text("\n".join(cell), encoding="utf-8")
    return ["-c", str(folder / "cell.txt"),
            *(f"{wheel}[all]" if wheel.name.startswith("sparkring-") else str(wheel) for wheel in wheels)]


def site_packages(interpreter: Path) -> Path:
    """Where the environment keeps its packages."""
    return Path(run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=interpreter.parent).strip())


def run(interpreter: Path, *arguments: str, cwd: Path, timeout: float = 300) -> str:
    """Run the new environment's Python with nothing of this one in sight; returns stdout."""
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON"}}
    path = [part for part in os.environ["PATH"].split(os.pathsep) if not part.startswith(str(ROOT))]
    env["PATH"] = os.pathsep.join([str(interpreter.parent), *path])
    ended = subprocess.run([interpreter, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return ended.stdout


def test_there_are_three_wheels(wheels: list[Path]) -> None:
    assert [wheel.name.partition("-")[0] for wheel in wheels] == ["horovod", "petastorm", "sparkring"]


def test_pip_finds_no_contradiction_between_what_it_installed(python: Path, tmp_path: Path) -> None:
    assert run(python, "-m", "pip", "check", cwd=tmp_path) == "No broken requirements found.\n"


def test_nothing_is_imported_from_the_checkout(python: Path, tmp_path: Path) -> None:
    code = ("import sys, sparkring, sparkring.spark_jobs, horovod.torch as hvd, petastorm\n"
            "for module in (sparkring, sparkring.spark_jobs, hvd, petastorm): print(module.__file__)\n"
            "print(hvd.gloo_built())\n"
            "print(*sys.path, sep='\\n')")
    lines = run(python, "-c", code, cwd=tmp_path).splitlines()
    assert all(file.startswith(str(python.parents[1])) for file in lines[:4]), lines[:4]
    assert lines[4] == "True"
    assert not [entry for entry in lines[5:] if entry.startswith(str(ROOT))]


def test_two_ranks_train_in_it_and_score(python: Path, tmp_path: Path) -> None:
    config = write(tmp_path, "trips.yaml", small_job(tmp_path))
    made = json.loads(run(python, "-m", "sparkring", "demo", config, "--json", cwd=tmp_path))  # all steps in one program
    assert (made["dataset"]["version"], made["training"]["epochs"]) == (1, 3)
    assert made["training"]["validation"]["auc"] > 0.9  # the label is what one column says
    assert made["scores"]["rows"] == ROWS // 6


def small_job(folder: Path) -> dict[str, Any]:
    """A config and its source: trips over six months, late when they are long."""
    with (folder / "trips.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "late", "day", "km"])
        for row in range(ROWS):
            km = (row * 7919) % 1000
            table.writerow([row, int(km > 500), f"2013-{7 + row * 6 // ROWS:02d}-15T12:00:00Z", km])
    job = json.loads(json.dumps(MINIMAL)) | {
        "workspace": str(folder / "workspace"),
        "spark": {"master": "local[2]"},
        "train": {"num_ranks": 2, "epochs": 3, "batch_rows": 100, "optimizer": {"lr": 0.01}},
    }
    job["prepare"]["sources"]["trips"]["path"] = str(folder / "trips.csv")
    job["prepare"]["split"] = {"column": "day", "validation_from": "2013-11-01T00:00:00Z", "test_from": "2013-12-01T00:00:00Z"}
    return job
