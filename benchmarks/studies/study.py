"""A study: what it measures, the page about it, and the three kinds of files that they become. Measures nothing itself.

    <folder>/<name>.json             the numbers, with the day, the commit and the machine
    <folder>/<name>.md               the page
    <folder>/<name>-<picture>.svg    its pictures
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.studies.charts import Drawing
from benchmarks.studies.markdown import prose

Numbers = Mapping[str, Any]
"""What JSON can hold."""
ROOT = Path(__file__).resolve().parents[2]
DIGITS = 6
"""Significant digits of a stored number."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One study."""

    name: str
    """In commands, and of its files."""
    title: str
    measure: Callable[..., Numbers]
    """Measure, in the size that the arguments say."""
    whole: Mapping[str, Any]
    """Arguments of a measurement whose numbers count."""
    quick: Mapping[str, Any]
    """Arguments of one that takes seconds, to see that it works."""
    page: Callable[[Numbers], Sequence[str | Drawing]]
    """The page's paragraphs, tables and pictures, made from the numbers alone."""


def measured(study: Study, *, quick: bool) -> dict[str, Any]:
    """Run a study; returns its document."""
    commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    numbers = _rounded(study.measure(**(study.quick if quick else study.whole)))
    return {"date": dt.datetime.now(dt.UTC).date().isoformat(), "commit": commit, "cores": len(os.sched_getaffinity(0)), "quick": quick,
            "numbers": numbers}


def files_of(study: Study, document: Mapping[str, Any]) -> dict[str, str]:
    """The page and the pictures of a document, by file name."""
    blocks = study.page(document["numbers"])
    drawings = [block for block in blocks if isinstance(block, Drawing)]
    head = (f"Written by `python -m benchmarks.studies {study.name}` from [its numbers]({study.name}.json); do not edit. Measured on "
            f"{document['date']} at commit {document['commit']}, on a machine with {document['cores']} cores and no GPU.")
    quick = ["**A quick run**: it shows that the study works, and its numbers mean nothing."] if document["quick"] else []
    shown = [prose(f"![{block.label}]({study.name}-{block.name}.svg)") if isinstance(block, Drawing) else block for block in blocks]
    page = "\n\n".join([f"# {study.title}", prose(head), *quick, *shown]) + "\n"
    return {f"{study.name}.md": page, **{f"{study.name}-{each.name}.svg": each.svg for each in drawings}}


def write(study: Study, document: Mapping[str, Any], folder: Path) -> None:
    """Write the numbers, the page and the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{study.name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    redraw(study, folder)


def redraw(study: Study, folder: Path) -> None:
    """Write the page and the pictures of the numbers that lie in the folder."""
    for name, text in files_of(study, stored(study, folder)).items():
        (folder / name).write_text(text, encoding="utf-8")


def stored(study: Study, folder: Path) -> dict[str, Any]:
    """The document that lies in the folder."""
    document: dict[str, Any] = json.loads((folder / f"{study.name}.json").read_text(encoding="utf-8"))
    return document


def _rounded(value: Any) -> Any:
    """The same with ``DIGITS`` digits of each float: more are noise, and would make long files."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {str(key): _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
