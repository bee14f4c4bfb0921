"""Notebooks in a real kernel: the tools of the dependency group ``notebook``, and cells run by nbclient (notebook_main.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cell_environments import CellFailure, uv

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "build/notebook-tools"


@dataclass(frozen=True)
class Cell:
    """A code cell that was run."""

    source: str
    outputs: tuple[dict[str, Any], ...]

    @property
    def stdout(self) -> str:
        return "".join(output["text"] for output in self.outputs if output.get("name") == "stdout")

    @property
    def error(self) -> dict[str, Any] | None:
        return next((output for output in self.outputs if output["output_type"] == "error"), None)

    def displayed(self, kind: str) -> list[str]:
        """What it displays of a media type."""
        return [output["data"][kind] for output in self.outputs if kind in output.get("data", {})]


def find_uv() -> str | None:
    """The program uv, which installs the tools; None if it is not here."""
    try:
        return uv()
    except CellFailure:
        return None


def install_tools() -> Path:
    """The folder of Jupyter's packages: installed as locked, into an environment of their own; nothing of ours is in it."""
    subprocess.run([uv(), "sync", "--quiet", "--frozen", "--only-group", "notebook", "--python", sys.executable], cwd=ROOT, check=True,
                   env=os.environ | {"UV_PROJECT_ENVIRONMENT": str(TOOLS)}, timeout=600)
    (packages,) = TOOLS.glob("lib/python*/site-packages")
    return packages


def run_notebook(notebook: Path, *, tools: Path, cwd: Path, interrupt_at: tuple[str, ...] = (), timeout_s: float = 600) -> list[Cell]:
    """Run a notebook in a kernel of this Python, which sees the tools after all that is installed here.

    Args:
        notebook: In jupytext's percent format.
        tools: What ``install_tools`` returned.
        cwd: The kernel's folder.
        interrupt_at: The kernel is interrupted when a cell displays a text in which the first pattern is found, then for the second.
        timeout_s: For all cells.
    Returns:
        The code cells; one that raised has an error, and the next ones were run all the same.
    """
    written = cwd / "run.ipynb"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tools)]), "JUPYTER_PLATFORM_DIRS": "1",
                                "JUPYTER_RUNTIME_DIR": str(cwd / "jupyter"), "IPYTHONDIR": str(cwd / "ipython")}
    ended = subprocess.run([sys.executable, ROOT / "tests/support/notebook_main.py", notebook, written, *interrupt_at], cwd=cwd,
                           env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    cells = [cell for cell in json.loads(written.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    return [Cell(_text(cell["source"]), tuple(_joined(output) for output in cell["outputs"])) for cell in cells]


def _joined(output: dict[str, Any]) -> dict[str, Any]:
    """The output with its lines in one text each."""
    output = {key: _text(value) if key == "text" else value for key, value in output.items()}
    return output | ({"data": {kind: _text(value) for kind, value in output["data"].items()}} if "data" in output else {})


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
