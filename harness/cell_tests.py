"""Unit tests of the checkout, and Petastorm's own, in a cell's environment, by its Python and its packages.

    .venv/bin/python -m harness.cell_tests           # make the outermost cells ready for `make test` (scripts/bootstrap.sh --cells)
    .venv/bin/python -m harness.cell_tests emr-7     # make this one ready
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cell_environments import FOLDER, CellFailure, call, freeze, is_made, make, uv
from harness.cells import OUTERMOST, Cell, platforms

ALL = (*(f"tests/unit/{folder}" for folder in ("conf", "cli", "data", "estimator", "models", "notebook", "parallel", "training",
                                               "spark_jobs")),
       *(f"tests/spark/test_{name}.py" for name in ("damaged_pages", "kinds", "petastorm_itself", "ring_connect", "spark_versions")))
"""All unit tests but tests/unit/house and tests/unit/third_party, which look at the checkout's files and recipes; and on Spark: page
checksums, jobs on images and texts, Petastorm's own readers, writer and converter, rings over Spark Connect, what versions do otherwise."""
TOOLS = ("aiohttp", "boto3", "databricks-sdk", "flask", "flask-cors", "googleapis-common-protos", "grpcio", "grpcio-status", "hypothesis",
         "mfusepy", "moto[s3]", "onnx>=1.19", "onnxruntime>=1.22", "onnxscript>=0.7", "opencv-python-headless", "optuna>=4", "packaging",
         "pytest", "pytest-timeout", "pytest-xdist", "requests", "tokenizers", "xxhash", "zstandard")
"""What these tests import beside what the job needs, and the packages of Spark Connect."""


def add_tools(cell: Cell) -> Path:
    """Install what the tests need, unless it is there, with the platform's packages held; returns the cell's interpreter."""
    folder = FOLDER / cell.name
    python, held, there = folder / "bin/python", folder / "held.txt", folder / "tools.txt"
    if there.is_file() and there.read_text(encoding="utf-8").split() == list(TOOLS):
        return python
    versions = freeze(python)
    held.write_text("\n".join(f"{name}=={versions[name]}" for name in cell.packages), encoding="utf-8")
    call(uv(), "pip", "install", "--quiet", "--python", python, "--constraints", held, *TOOLS)
    there.write_text("\n".join(TOOLS), encoding="utf-8")
    return python


def run_unit_tests(cell: Cell, tests: Sequence[str] = ALL, *, workers: int = 2) -> int:
    """Run tests in a cell whose environment is made.

    Args:
        cell: Of the list.
        tests: Files and folders of the checkout.
        workers: Processes.
    Returns:
        How many passed.
    Raises:
        CellFailure: one failed, or none ran.
    """
    python = add_tools(cell)
    out = call(python, "-m", "pytest", "--quiet", "--numprocesses", str(workers), "--dist", "loadfile", *tests, OMP_NUM_THREADS="1")
    found = re.search(r"(\d+) passed", out.splitlines()[-1])
    if found is None:
        raise CellFailure(f"no test passed: {out[-1000:]}")
    return int(found.group(1))


def main() -> None:
    """Make cells and what their tests need."""
    for cell in platforms().named(sys.argv[1:] or OUTERMOST):
        print(f"[cells] {cell.name}", file=sys.stderr, flush=True)
        if not is_made(cell):
            make(cell)
        add_tools(cell)


if __name__ == "__main__":
    main()
