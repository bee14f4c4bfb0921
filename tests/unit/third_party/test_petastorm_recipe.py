"""The recipe of Petastorm's wheel: what is installed here was made by it, and a wheel that it does not fit is refused."""

from __future__ import annotations

import importlib.metadata
import runpy
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

RECIPE = Path(__file__).resolve().parents[3] / "third_party/petastorm"
EDITS = runpy.run_path(str(RECIPE / "edits.py"))
ALL = [*EDITS["PRODUCT"], *EDITS["TESTS"]]


def installed(file: str) -> str:
    return Path(str(importlib.metadata.distribution("petastorm").locate_file(file))).read_text(encoding="utf-8")


@pytest.mark.parametrize("file", sorted({file for file, _, _ in ALL}))
def test_the_installed_file_says_what_the_recipe_makes_it_say_and_that_it_was_changed(file: str) -> None:
    text = installed(file)
    assert [new for name, _, new in ALL if name == file and new not in text] == []
    assert [old for name, old, new in ALL if name == file and old not in new and old in text] == []
    assert text.startswith("# Changed by sparkring's third_party/petastorm/edits.py.\n")


def test_the_installed_wheel_is_told_apart_and_carries_our_module() -> None:
    assert "Build: 2sparkring" in installed("petastorm-0.13.1.dist-info/WHEEL")
    assert installed("petastorm/legacy_parquet.py") == (RECIPE / "legacy_parquet.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(("predicates", "ended"), [
    pytest.param("another release", (1, "predicates.py does not say 'np.in1d('; this recipe does not fit this wheel.\n"), id="refused"),
    pytest.param("np.in1d(", (0, ""), id="the control: mended")])
def test_a_wheel_that_lacks_one_text_is_refused(tmp_path: Path, predicates: str, ended: tuple[int, str]) -> None:
    said = defaultdict[str, list[str]](list)
    for file, old, _ in ALL:
        said[file].append(old)
    said["petastorm-0.13.1.dist-info/METADATA"] = [f"{line}\n" for line, _ in EDITS["REQUIREMENTS"]]
    said["petastorm/predicates.py"] = [predicates]
    for file, texts in said.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("\n".join(texts), encoding="utf-8")
    tried = _mend(tmp_path)
    assert (tried.returncode, tried.stderr) == ended


def _mend(tree: Path) -> subprocess.CompletedProcess[str]:
    program = "import pathlib, sys, backend; backend.mend(pathlib.Path(sys.argv[1]))"
    return subprocess.run([sys.executable, "-B", "-c", program, str(tree)], cwd=RECIPE, capture_output=True, text=True, check=False,
                          timeout=60)
