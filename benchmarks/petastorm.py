"""Petastorm's own tests on pyarrow 14 and NumPy 1, and on the newest of both: as many must pass there.

    uv run python -m benchmarks.petastorm

The wheel of third_party/petastorm carries the tests. Each side gets a new environment with that wheel, and the same tests run in
both, Spark's among them. Left out are modules that import TensorFlow, which no side has, and that of old datasets, which the wheel
does not carry.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from benchmarks.support.foreign_tests import PYTEST, outcomes
from benchmarks.support.report import print_result
from harness.cell_environments import ROOT, call, clean_environment, uv

SIDES: Mapping[str, tuple[str, ...]] = {
    "14": ("pyarrow==14.0.2", "numpy<2", "pandas<2.3", "pyspark>=4.0,<4.1"),  # Spark 4.1 asks for pyarrow 15
    "newest": ("pyarrow", "numpy>=2", "pandas", "pyspark"),
}
TOOLS = ("opencv-python-headless", "s3fs", "gcsfs", "pillow", "pytest-logger", "pytz", f"torch=={version('torch').partition('+')[0]}")
"""What the tests import beside what the wheel asks for."""
NEED_TENSORFLOW = ("test_tf_*", "test_benchmark", "test_ngram_end_to_end", "test_reader_mock", "test_spark_dataset_converter",
                   "test_weighted_sampling_reader")
NEED_OLD_DATASETS = ("test_reading_legacy_datasets",)
TESTS = ("petastorm", *(f"--ignore-glob=*/{name}.py" for name in (*NEED_TENSORFLOW, *NEED_OLD_DATASETS)))
SHOWN = ("pyarrow", "numpy", "pandas", "pyspark")


def main() -> None:
    """Build the wheel, run both sides, and print."""
    with tempfile.TemporaryDirectory(prefix="sparkring-petastorm-") as folder:
        wheel = _wheel(Path(folder))
        pythons = {side: _environment(Path(folder) / side, str(wheel), *wanted) for side, wanted in SIDES.items()}
        found = {side: outcomes(python, _site_packages(python), TESTS, environment=_variables(python)) for side, python in pythons.items()}
        versions = {side: _versions(python) for side, python in pythons.items()}
    passed = {side: {test for test, outcome in tests.items() if outcome == "passed"} for side, tests in found.items()}
    everything = set().union(*found.values())
    print_result(
        [{"side": side, **versions[side], "passed": len(passed[side]), **{
            word: sum(outcome == word for outcome in found[side].values()) for word in ("failed", "skipped")}} for side in SIDES],
        {**{f"passed_{side}": len(passed[side]) for side in SIDES}, "tests": len(everything),
         "failed_only_14": sorted(passed["newest"] - passed["14"]), "failed_only_newest": sorted(passed["14"] - passed["newest"]),
         **{f"versions_{side}": versions[side] for side in SIDES}})


def _wheel(folder: Path) -> Path:
    call(uv(), "build", "--wheel", "--out-dir", folder / "dist", ROOT / "third_party/petastorm")
    (wheel,) = (folder / "dist").glob("petastorm-*.whl")
    return wheel


def _environment(folder: Path, *wanted: str) -> Path:
    """The interpreter of a new environment with these packages."""
    python = folder / "bin/python"
    call(uv(), "venv", "--python", sys.executable, folder)
    call(uv(), "pip", "install", "--python", python, *wanted, *TOOLS, *PYTEST)
    return python


def _site_packages(python: Path) -> Path:
    return Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


def _variables(python: Path) -> dict[str, str]:
    """This process's variables, without those that lead to its own packages; Spark's workers are of the environment."""
    kept = clean_environment()
    return kept | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1",
                   "PATH": f"{python.parent}{os.pathsep}{kept['PATH']}"}


def _versions(python: Path) -> dict[str, str]:
    listed = dict(line.split("==") for line in call(uv(), "pip", "freeze", "--python", python).splitlines() if "==" in line)
    return {name: listed[name] for name in SHOWN}


if __name__ == "__main__":
    main()
