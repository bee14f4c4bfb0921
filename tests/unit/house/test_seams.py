"""What tests replace inside the product stands in one place (tests/support/seams.py), and is there."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import seams

TESTS = Path(__file__).resolve().parents[2]
SEAMS = sorted({value for name, value in vars(seams).items() if name.isupper()})


def _replaced(source: str) -> Iterator[str]:
    """What a module replaces in the product by another way than a seam, as source text."""
    tree = ast.parse(source)
    ours = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("sparkring") for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and re.search(r"(^|\.)(setattr|patch(\.object)?)$", ast.unparse(node.func)):
            first = ast.unparse(node.args[0])
            if first.split(".")[0] in ours or first.startswith(("'sparkring", '"sparkring')):
                yield ast.unparse(node)
        elif isinstance(node, ast.Assign):
            targets = [part for target in node.targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
            yield from (ast.unparse(node) for target in targets if isinstance(target, ast.Attribute | ast.Subscript)
                        and re.split(r"[.)]", ast.unparse(target).removeprefix("vars("))[0] in ours)


@pytest.mark.parametrize("seam", SEAMS)
def test_a_seam_is_there(seam: str) -> None:
    owner, _, name = seam.rpartition(".")
    assert hasattr(pkgutil.resolve_name(owner), name)


def test_tests_replace_nothing_in_the_product_but_seams() -> None:
    found = {path.relative_to(TESTS).as_posix(): replaced for path in TESTS.rglob("*.py")
             if (replaced := list(_replaced(path.read_text(encoding="utf-8"))))}
    assert found == {}, "name it in tests/support/seams.py"


@pytest.mark.parametrize("line", [
    "monkeypatch.setattr(saver, 'LOOK_S', 1)", "patch.object(Saver, 'after', 1)", "patch('sparkring.spark_jobs.train.train')",
    "Saver.after = 1", "vars(saver)['LOOK_S'] = 1"])
def test_control_other_ways_are_found(line: str) -> None:
    imports = "from sparkring.pipelines.training.loop import saver\nfrom sparkring.pipelines.training.loop.saver import Saver\n"
    assert list(_replaced(f"{imports}{line}\n"))
