"""`pip install` of our wheel beside a platform's own Spark, Arrow and torch replaces none of them.

A platform's packages are there by name and version alone, which is all that pip looks at: a real pip installs the real wheel, with what it
asks for, and `pip freeze` says what there is before and after.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.own_wheel import build_wheel

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

PLATFORMS = {
    "as Databricks 15.4": {
        "pyspark": "3.5.0", "py4j": "0.10.9.7", "pyarrow": "14.0.1", "numpy": "1.23.5", "pandas": "1.5.3", "torch": "2.6.0+cpu",
        "scikit-learn": "1.3.0", "matplotlib": "3.7.2", "psutil": "5.9.0", "opencv-python": "4.8.0.76", "tokenizers": "0.15.0",
        "setuptools": "68.0.0"},
    "as Databricks 17.3": {
        "pyspark": "4.0.0", "py4j": "0.10.9.9", "pyarrow": "19.0.1", "numpy": "2.1.3", "pandas": "2.2.3", "torch": "2.7.0",
        "scikit-learn": "1.6.1", "matplotlib": "3.10.0", "psutil": "5.9.0", "setuptools": "78.1.1"},
    "the newest": {
        "pyspark": "4.3.0", "py4j": "0.10.9.9", "pyarrow": "26.0.1", "numpy": "2.4.0", "pandas": "3.1.0", "torch": "2.15.0",
        "scikit-learn": "1.9.0", "matplotlib": "3.11.0", "psutil": "7.2.0", "setuptools": "82.0.0"},
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("source"))


def platform(folder: Path, packages: dict[str, str]) -> Path:
    """The interpreter of a new environment in which pip sees these packages."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    python = folder / "bin" / "python"
    pip(python, "install", "--quiet", "--upgrade", "pip")
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for name, version in packages.items():
        if name == "setuptools":
            pip(python, "uninstall", "--quiet", "--yes", name)
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        (info / "INSTALLER").write_text("pip\n", encoding="utf-8")
        (info / "RECORD").write_text("", encoding="utf-8")
    return python


def pip(python: Path, *arguments: str) -> str:
    return run(python, "-m", "pip", "--disable-pip-version-check", *arguments)


def run(python: Path, *arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    ended = subprocess.run([python, *arguments], cwd=python.parent, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return ended.stdout


@pytest.mark.parametrize("name", PLATFORMS)
def test_nothing_of_a_platform_is_replaced(name: str, wheel: Path, tmp_path: Path) -> None:
    python = platform(tmp_path / "env", PLATFORMS[name])
    before = set(pip(python, "freeze", "--all").splitlines())
    assert {f"{package}=={version}" for package, version in PLATFORMS[name].items()} <= before
    pip(python, "install", "--quiet", str(wheel))
    after = set(pip(python, "freeze", "--all").splitlines())
    assert before - after == set()
    assert any(line.startswith("sparkring") for line in after - before)
    assert any(line.startswith("pydantic==") for line in after - before)


def test_what_the_package_does_ask_for_would_replace_a_platform_s(wheel: Path, tmp_path: Path) -> None:
    """The control: the bounds that it had before."""
    python = platform(tmp_path / "env", {"numpy": "2.1.3", "pyarrow": "19.0.1"})
    told = pip(python, "install", "--quiet", "--dry-run", "--report", "-", str(wheel), "pyarrow==14.0.2", "numpy>=1.26,<2")
    assert {"pyarrow", "numpy"} <= {entry["metadata"]["name"] for entry in json.loads(told)["install"]}


def test_an_extra_takes_a_platform_s_own_where_that_will_do(wheel: Path, tmp_path: Path) -> None:
    python = platform(tmp_path / "env", PLATFORMS["as Databricks 17.3"])
    told = pip(python, "install", "--quiet", "--dry-run", "--report", "-", f"{wheel}[spark,report]")
    assert not {entry["metadata"]["name"].lower() for entry in json.loads(told)["install"]} & PLATFORMS["as Databricks 17.3"].keys()
