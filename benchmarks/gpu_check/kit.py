"""Fill the folder that ``gpu_check.sh`` needs on a machine without a network: ``make gpu-kit``.

    gpu_check.sh        the command
    program/            this program
    recipe/             third_party/horovod
    horovod-*.tar.gz    its published source
    wheels/             sparkring, and what the machine may lack for it and for Horovod
    requirements.txt    what is installed there, from wheels/
    data/               small dataset versions: flights and text by ``sparkring prepare``, images by harness/image_dataset.py
    manifest.json       versions, the Python that the wheels are for, the hash of every file

Needs Spark, Java and a package index. The folder must stay below 60 MB; what every machine with torch has is not in it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from harness.image_dataset import write_image_dataset
from sparkring.conf.loading import load_config
from sparkring.version import __version__

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 60_000_000
THERE = {"numpy", "pyarrow", "torch"}
"""Packages of the machine: too large to travel, or built for its torch."""
BUILD_TOOLS = ("pip", "setuptools>=77,<81", "packaging")
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64", "manylinux1_x86_64")
"""Of wheels for glibc 2.28 or later. pip takes each name literally: it knows no older ones by itself."""
IMAGE_ROWS, IMAGE_SHAPE = 2048, (1, 28, 28)
PROGRAM = ("benchmarks/__init__.py", "benchmarks/gpu_check", "harness/__init__.py", "harness/process_memory.py")


def main() -> None:
    """Fill the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="the machine's Python")
    asked = parser.parse_args()
    kit: Path = asked.folder.resolve()
    shutil.rmtree(kit, ignore_errors=True)
    (kit / "wheels").mkdir(parents=True)
    _copy_program(kit)
    _take_packages(kit, python=asked.python)
    _prepare_data(kit / "data")
    size = _write_manifest(kit, python=asked.python)
    print(f"{kit}: {size / 1e6:.1f} MB for Python {asked.python}; there run gpu_check.sh FOLDER")


def _copy_program(kit: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "kit.py")
    for name in PROGRAM:
        source, target = ROOT / name, kit / "program" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy(source, target)
    shutil.copytree(ROOT / "third_party" / "horovod", kit / "recipe", ignore=ignored)
    shutil.copy(ROOT / "scripts" / "gpu_check.sh", kit / "gpu_check.sh")


def _take_packages(kit: Path, *, python: str) -> None:
    """Our wheel, Horovod's source, and the wheels of what they need; pip chooses and fetches, in an environment of its own."""
    wheels = kit / "wheels"
    _run(sys.executable, "-c", f"from hatchling.build import build_wheel; build_wheel({str(wheels)!r})", cwd=ROOT)
    recipe = tomllib.loads((ROOT / "third_party/horovod/pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*recipe["dependencies"], *BUILD_TOOLS]
    (kit / "requirements.txt").write_text("\n".join([f"sparkring=={__version__}", *needed]) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        _run(sys.executable, "-m", "venv", folder)
        pip = (f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check")
        _run(*pip, "install", "--quiet", "--upgrade", *BUILD_TOOLS)
        _take_source(kit, pip, version=recipe["version"])
        chosen = _chosen(pip, [*map(str, wheels.glob("sparkring-*.whl")), *needed], python=python)
        _run(*pip, "download", "--quiet", "--no-deps", *_for(python), "--dest", str(wheels),
             *(f"{name}=={version}" for name, version in sorted(chosen.items()) if name not in THERE | {"sparkring"}))


def _take_source(kit: Path, pip: tuple[str, ...], *, version: str) -> None:
    """Horovod's published source, from a file or from the index; the recipe knows its hash."""
    given = os.environ.get("SPARKRING_HOROVOD_SDIST")
    if given:
        shutil.copy(given, kit / f"horovod-{version}.tar.gz")
        return
    _run(*pip, "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(kit),
         f"horovod=={version}")


def _chosen(pip: tuple[str, ...], needed: list[str], *, python: str) -> dict[str, str]:
    """Name -> version of all that pip would install there."""
    with tempfile.TemporaryDirectory() as target:
        told = _run(*pip, "install", "--quiet", "--dry-run", "--report", "-", "--target", target, *_for(python), *needed)
    entries: list[dict[str, Any]] = json.loads(told)["install"]
    return {entry["metadata"]["name"].lower(): entry["metadata"]["version"] for entry in entries}


def _for(python: str) -> list[str]:
    """Options with which pip takes wheels for another machine."""
    return ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python,
            *(option for platform in PLATFORMS for option in ("--platform", platform))]


def _prepare_data(folder: Path) -> None:
    """Small dataset versions, each the first of its folder."""
    from sparkring.spark_jobs.prepare import prepare

    first_months = load_config("base/flights").prepare.query
    classes = "CASE WHEN t.arr_delay > 15 THEN 'late' WHEN t.arr_delay < -15 THEN 'early' WHEN t.arr_delay <= 15 THEN 'on time' END AS late"
    for shipped, here in (("FROM flights\n", "FROM flights WHERE month <= 3\n"),
                          ("CAST(t.arr_delay > 15 AS INT) AS late", classes)):  # of two, the metrics would take scikit-learn there
        assert shipped in first_months, "the shipped query says this in other words"
        first_months = first_months.replace(shipped, here)
    packages = """
        SELECT path, content, CASE package WHEN 'json' THEN 'train' WHEN 'tomllib' THEN 'validation' ELSE 'test' END AS part
        FROM (SELECT *, split(path, '/')[0] AS package FROM library) WHERE package IN ('json', 'tomllib', 'zoneinfo')"""
    with tempfile.TemporaryDirectory() as workspace:
        for name, config, overrides in (
                ("flights", "local/flights", [f"prepare.query={json.dumps(first_months)}", "prepare.task=multiclass",
                                              "prepare.split.validation_from=2013-03-15T04:00:00Z",
                                              "prepare.split.test_from=2013-03-25T04:00:00Z"]),
                ("text", "local/python-text", [f"prepare.query={json.dumps(packages)}", "prepare.features.tokens.length=128"])):
            loaded = load_config(config, [*overrides, f"workspace={workspace}/{name}"])
            prepare(loaded)
            shutil.copytree(loaded.dataset.removeprefix("file://"), folder / name, ignore=shutil.ignore_patterns("cache"))
    write_image_dataset(folder / "images", [256] * (IMAGE_ROWS // 256), validation_rows=512, shape=IMAGE_SHAPE)


def _write_manifest(kit: Path, *, python: str) -> int:
    """Name every file with its hash; returns the bytes of all.

    Raises:
        SystemExit: they are too many to travel.
    """
    files = sorted(path for path in kit.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    if size >= MOST_BYTES:
        largest = sorted(files, key=lambda path: -path.stat().st_size)[:3]
        raise SystemExit(f"the kit has {size / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:.0f} are allowed; the largest files are "
                         f"{', '.join(path.name for path in largest)}: leave out what machines have.")
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=10"], cwd=ROOT, capture_output=True, text=True,
                            check=False).stdout.strip() or "unknown"
    (kit / "manifest.json").write_text(json.dumps({
        "python": python, "version": __version__, "commit": commit,
        "files": {path.relative_to(kit).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}}, indent=1) + "\n",
        encoding="utf-8")
    return size


def _run(*command: str, cwd: Path | None = None) -> str:
    """Run a program; returns what it writes."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
