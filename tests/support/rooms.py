"""The rooms of the product, as their ``__init__`` docstrings describe them: what is in one, what it may import, what does not belong.

    python -m tests.support.rooms      # rewrite the table of CONTRIBUTING.md

A docstring opens with one sentence and holds the lines ``May import: room, room.`` and ``Not here: ...``. A room named there brings
the rooms below it, except where it lies above the room that names it: then only its own modules may be imported.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP = ("conf", "models", "pipelines", "spark_jobs", "sparkring")
BEGIN, END = "<!-- rooms: written by `python -m tests.support.rooms` -->", "<!-- end of rooms -->"
GROUND = ("sparkring.errors", "sparkring.extras", "sparkring.output_file", "sparkring.version")
"""Modules that every room may import."""


@dataclass(frozen=True)
class Room:
    """One package of the product."""

    name: str
    """As it is imported."""
    folder: str
    what: str
    may_import: tuple[str, ...]
    """Folders."""
    not_here: str

    def allows(self, other: str) -> bool:
        """Whether a module here may import one of the room ``other``."""
        if other == self.name:
            return True
        return any(other == import_name(folder) or (other.startswith(f"{import_name(folder)}.")
                                                    and not self.name.startswith(f"{import_name(folder)}."))
                   for folder in self.may_import)


def import_name(folder: str) -> str:
    """``pipelines/data`` -> ``sparkring.pipelines.data``."""
    parts = folder.split("/")
    return ".".join(parts if parts[0] == "sparkring" else ["sparkring", *parts])


def parse(folder: str, docstring: str) -> Room:
    """Read one ``__init__`` docstring.

    Raises:
        ValueError: it lacks one of the two lines.
    """
    found = re.search(r"^May import: (.+?)\.\nNot here: (.+?)\.$", docstring, flags=re.MULTILINE | re.DOTALL)
    if not found:
        raise ValueError(f"{folder}/__init__.py: its docstring needs the lines 'May import: ...' and 'Not here: ...'")
    rooms, not_here = (" ".join(part.split()) for part in found.groups())
    return Room(name=import_name(folder), folder=folder, what=" ".join(docstring.split("\n\n", maxsplit=1)[0].split()),
                may_import=tuple(folder if room == "the rooms inside" else room for room in rooms.split(", ") if room != "nothing of ours"),
                not_here=not_here)


def rooms() -> dict[str, Room]:
    """Every room but the front door, whose docstring is for users; by import name, in the order of the folders."""
    folders = [path.parent.relative_to(ROOT).as_posix() for top in TOP for path in sorted((ROOT / top).rglob("__init__.py"))]
    folders.remove("sparkring")
    found = [parse(folder, ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text(encoding="ascii"))) or "")
             for folder in folders]
    return {room.name: room for room in found}


def modules() -> dict[str, Path]:
    """Every module of the product, by its import name."""
    found = {}
    for top in TOP:
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts if top == "sparkring" else ("sparkring", *parts)).removesuffix(".__init__")] = path
    return found


def table() -> str:
    """The rooms as a Markdown table."""
    lines = ["| room | what is in it | what is not |", "|---|---|---|"]
    lines += [f"| `{room.folder}/` | {room.what} | {room.not_here} |" for room in rooms().values()]
    return "\n".join(lines).replace("``", "`")


def with_table(page: str) -> str:
    """``page`` with the table between its two marks written anew."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    contributing = ROOT / "CONTRIBUTING.md"
    contributing.write_text(with_table(contributing.read_text(encoding="utf-8")), encoding="utf-8")
