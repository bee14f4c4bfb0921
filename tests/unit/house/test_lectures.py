"""The page on lectures: every topic has a command, tests and a page to read on, and all that it names exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from sparkring.conf.loading import load_config, shipped_configs
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.models.build import Shapes, list_blocks
from sparkring.pipelines.training.job.layout import require_micro_batches

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/lectures.md").read_text(encoding="utf-8")
HEAD = "| topic | run | tests | read on |"
ROWS = {"digits": Shapes(image=(1, 8, 8), num_outputs=10), "fashion": Shapes(image=(1, 28, 28), num_outputs=10),
        "flights": Shapes(num_numeric=31, cardinalities=(9, 4)), "python": Shapes(length=256, vocabulary=258)}
"""The shapes of the rows of a config, by the beginning of its name."""
HERE = "[this test](../tests/unit/house/test_lectures.py)"


def rows(page: str) -> list[list[str]]:
    """The cells of each topic."""
    tables = re.findall(rf"^{re.escape(HEAD)}\n\|[-|]+\|\n((?:\|.*\n)+)", page, flags=re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for table in tables for line in table.splitlines()]


def commands(page: str) -> Iterator[list[str]]:
    """The words of each command."""
    for code in re.findall(r"`([^`]+)`", page):
        if code.startswith(("sparkring ", "pytest ")):
            yield shlex.split(code)


def wrong(page: str) -> list[str]:
    """Topics that lack something, files that do not exist, and configs that cannot be loaded."""
    found = [row[0] for row in rows(page) if len(row) != 4 or not all(row) or "](../tests/" not in row[2]]
    found += [path for path in re.findall(r"\]\(\.\./(tests/[^)]+)\)", page) if not re.search(r"/test_\w+\.py$", path)]
    found += [path for path in re.findall(r"(?:tests|docs|scripts|benchmarks)/[\w/]+\.\w+", page) if not (ROOT / path).is_file()]
    found += [name for name in re.findall(r"\b(?:base|local|yarn|databricks)/[\w-]+", page) if name not in shipped_configs()]
    return [*found, *(problem for words in commands(page) for problem in _refusal(words))]


def _refusal(words: list[str]) -> list[str]:
    """Why the config of a command does not load with its overrides, if it names a shipped one."""
    try:
        _config(words)
    except ConfigError as error:
        return [str(error)]
    return []


def _config(words: list[str]) -> Config | None:
    name = next((word for word in words if word in shipped_configs()), None)
    return load_config(name, [value for option, value in pairwise(words) if option == "--set"]) if name else None


def test_every_topic_has_a_command_tests_and_a_page_and_all_that_is_named_exists() -> None:
    assert len(rows(PAGE)) > 40
    assert wrong(PAGE) == []


@pytest.mark.parametrize(("row", "problem"), [
    pytest.param("| LeNet | `sparkring train local/digits` | | page |", "LeNet", id="no test"),
    pytest.param(f"| LeNet | `sparkring train local/lenet` | {HERE} | page |", "local/lenet", id="no such config"),
    pytest.param("| LeNet | `x` | [t](../tests/unit/test_none.py) | page |", "tests/unit/test_none.py", id="no such test"),
    pytest.param(f"| LeNet | `sparkring train local/digits --set train.epoch=1` | {HERE} | page |", "train.epoch", id="no such key")])
def test_control_what_is_missing_is_found(row: str, problem: str) -> None:
    (found,) = wrong(f"{HEAD}\n|---|---|---|---|\n{row}\n")
    assert problem in found


def test_the_network_of_each_command_is_built_for_its_rows() -> None:
    configs = [config for words in commands(PAGE) if (config := _config(words))]
    assert {config.model.network for config in configs} >= {"linear", "mlp", "lenet5", "alexnet_cifar", "inception", None}
    for config in configs:
        shapes = replace(ROWS[config.name.partition("-")[0]], masked=config.prepare.task == "masked_tokens")
        require_micro_batches(config.train, list_blocks(config.model, shapes))
