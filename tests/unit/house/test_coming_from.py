"""The page for those who come from other libraries: its code is code, and calls what there is with arguments that it has."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkring.conf.schema import Config, TrainConfig

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/coming-from.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
KEYS = {*TrainConfig.model_fields, *Config.model_fields}
"""What functions of sparkring take as further keywords."""


def test_there_is_code_of_each_library() -> None:
    first_words = {block.split()[1].rstrip(",") for block in BLOCKS}
    assert first_words == {"Horovod", "Petastorm", "PySpark", "sparkring"}


@pytest.fixture(autouse=True)
def _horovod_finds_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its estimator imports it, and nothing here writes with it."""
    stand_in = types.ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0][2:])
def test_each_call_of_a_library_names_something_that_it_has_and_keywords_that_it_takes(block: str) -> None:
    assert problems(block) == []


def test_an_unknown_name_and_an_unknown_keyword_are_noticed() -> None:
    """The control."""
    assert problems("import sparkring\nsparkring.trian('x')") == ["sparkring.trian"]
    assert problems("import sparkring\nsparkring.train('x', epoch=1)") == ["sparkring.train(epoch)"]
    assert problems("from petastorm import make_batch_reader as r\nr('x', shards=1)") == ["petastorm.make_batch_reader(shards)"]


def problems(code: str) -> list[str]:
    """The calls whose function or keyword does not exist."""
    tree = ast.parse(code)
    imported = dict(_imports(tree))
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        root, _, rest = ast.unparse(call.func).partition(".")
        if root not in imported:
            continue  # a variable, or a function of the reader's own
        name = ".".join(filter(None, [imported[root], rest]))
        function = _named(name)
        if function is None:
            found.append(name)
            continue
        known = {*inspect.signature(function).parameters, *(KEYS if name.startswith("sparkring.") else ())}
        found += [f"{name}({keyword.arg})" for keyword in call.keywords if keyword.arg not in known]
    return found


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else alias.name.partition(".")[0])
                        for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _named(name: str) -> Any:
    """What a dotted name stands for; None if there is no such thing."""
    parts = name.split(".")
    module, rest = importlib.import_module(parts[0]), parts[1:]
    found: Any = module
    for number, part in enumerate(rest):
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(".".join(parts[:number + 2]))
            except ImportError:
                return None
    return found
