"""Our wheel, built from a copy of what the build reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.rooms import ROOT, TOP


def build_wheel(folder: Path) -> Path:
    """Build it in ``folder``, an empty one; the checkout gets no file."""
    for room in TOP:
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    ended = subprocess.run([sys.executable, "-c", "from hatchling.build import build_wheel; build_wheel('dist')"], cwd=folder,
                           capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    (built,) = (folder / "dist").glob("*.whl")
    return built
