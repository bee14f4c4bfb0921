"""`pip install` of our wheel beside a platform's own Spark, Arrow and torch replaces none of them.

A platform's packages (harness/platforms.toml) are there by name and version alone, which is all that pip looks at: a real pip installs the
real wheel, with what it asks for, and `pip freeze` says what there is before and after. `make test-platforms` has the packages themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cells import platforms
from tests.support.own_wheel import build_wheel

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

CELLS = {cell.name: cell for cell in platforms().cells}


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


@pytest.mark.parametrize("name", CELLS)
def test_nothing_of_a_platform_is_replaced_but_what_its_cell_gives_a_reason_for(name: str, wheel: Path, tmp_path: Path) -> None:
    python = platform(tmp_path / "env", CELLS[name].packages)
    before = set(pip(python, "freeze", "--all").splitlines())
    assert {f"{package}=={version}" for package, version in CELLS[name].packages.items()} <= before
    pip(python, "install", "--quiet", str(wheel))
    after = set(pip(python, "freeze", "--all").splitlines())
    # At most those: which release of a package pip chooses, and so what that asks for, changes with the index.
    assert {line.partition("==")[0] for line in before - after} <= CELLS[name].replaced.keys()
    assert any(line.startswith("sparkring") for line in after - before)
    assert any(line.startswith("blake3==") for line in after - before)


def test_what_the_package_does_ask_for_would_replace_a_platform_s(wheel: Path, tmp_path: Path) -> None:
    """The control: the bounds that it had before."""
    python = platform(tmp_path / "env", {"numpy": "2.1.3", "pyarrow": "19.0.1"})
    told = pip(python, "install", "--quiet", "--dry-run", "--report", "-", str(wheel), "pyarrow==14.0.2", "numpy>=1.26,<2")
    assert {"pyarrow", "numpy"} <= {entry["metadata"]["name"] for entry in json.loads(told)["install"]}


def test_an_extra_takes_a_platform_s_own_where_that_will_do(wheel: Path, tmp_path: Path) -> None:
    python = platform(tmp_path / "env", CELLS["databricks-17.3"].packages)
    told = pip(python, "install", "--quiet", "--dry-run", "--report", "-", f"{wheel}[spark,report]")
    assert not {entry["metadata"]["name"].lower() for entry in json.loads(told)["install"]} & CELLS["databricks-17.3"].packages.keys()
