"""What a wrong config is told: each check of the schema says what was found, and after a semicolon what to do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sparkring.conf import schema

MAKERS = {"ValueError", "PydanticCustomError"}


def _messages(file: Path) -> list[str]:
    calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if isinstance(call.func, ast.Name) and call.func.id in MAKERS]


@pytest.mark.parametrize("file", sorted(Path(schema.__file__).parent.rglob("*.py")), ids=lambda file: file.name)
def test_each_check_states_its_remedy(file: Path) -> None:
    assert [message for message in _messages(file) if "; " not in message] == []
