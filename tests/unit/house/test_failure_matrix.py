"""docs/reference/failures.md, and the table of traps in docs/explanation/horovod-traps.md, name tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

FAILURES = Path(__file__).resolve().parents[3] / "docs/reference/failures.md"
TRAPS = FAILURES.parents[1] / "explanation/horovod-traps.md"


def named_tests(text: str) -> list[tuple[str, str]]:
    """(path, test) of every test that the tables name; several of one file are written ``file::one, ::other``."""
    found = []
    for path, names in re.findall(r"\]\((\.\./\.\./tests/[\w/]+\.py)\)((?:(?:, )?::\w+)*)", text):
        found += [(path, name) for name in re.findall(r"::(\w+)", names)] or [(path, "")]
    return found


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def missing(text: str) -> list[tuple[str, str]]:
    return [(path, name) for path, name in named_tests(text)
            if not (FAILURES.parent / path).is_file() or (name and name not in functions_of(FAILURES.parent / path))]


@pytest.mark.parametrize(("page", "least"), [(FAILURES, 30), (TRAPS, 15)], ids=["failures", "traps"])
def test_every_test_of_the_failure_matrix_is_there(page: Path, least: int) -> None:
    text = page.read_text(encoding="utf-8")
    assert len([test for _, test in named_tests(text) if test]) > least
    assert missing(text) == []


def test_each_of_the_eleven_traps_stands_with_its_test() -> None:
    text = TRAPS.read_text(encoding="utf-8")
    names = [f"T{number}" for number in range(1, 12)]
    assert re.findall(r"^\| (T\d+) \|", text, flags=re.MULTILINE) == names
    tests = [line for line in text.splitlines() if re.match(r"- T\d+: ", line)]
    assert [line[2:].partition(":")[0] for line in tests] == names
    assert [line for line in tests if not named_tests(line)] == ["- T3: the first test of T1"]


def test_each_failure_stands_with_its_test() -> None:
    text = FAILURES.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)
    assert rows == [str(number) for number in range(1, len(rows) + 1)]
    tests = {line[2:].partition(":")[0]: line for line in text.splitlines() if re.match(r"- \d+: ", line)}
    assert list(tests) == rows
    assert [line for line in tests.values() if not named_tests(line) and "-m benchmarks." not in line] == []


def test_control_a_test_that_is_not_there_is_found() -> None:
    here = "../../tests/unit/house/test_failure_matrix.py"
    assert missing(f"[x]({here})::test_of_nothing, ::test_every_test_of_the_failure_matrix_is_there") == [(here, "test_of_nothing")]
    assert missing("[x](../../tests/unit/test_gone.py)::test_x") == [("../../tests/unit/test_gone.py", "test_x")]
