"""The house rules that can be read off the source: which room may import which, and what every module must have.

    errors <- conf <- models <- pipelines.data <- pipelines.parallel <- pipelines.training <- spark_jobs <- sparkring
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("conf", "models", "pipelines", "spark_jobs", "sparkring")

LAYERS = ("sparkring.errors", "sparkring.conf", "sparkring.models", "sparkring.pipelines.data", "sparkring.pipelines.parallel",
          "sparkring.pipelines.training", "sparkring.spark_jobs", "sparkring")
"""From the bottom up; a module belongs to the first that its name lies under."""

FORBIDDEN = {
    "sparkring.errors": {"torch", "pyspark", "horovod", "petastorm", "pydantic", "numpy", "pyarrow", "pandas"},
    "sparkring.conf": {"torch", "pyspark", "horovod", "petastorm", "numpy", "pyarrow", "pandas"},
    "sparkring.models": {"pyspark", "horovod", "petastorm"},
    "sparkring.pipelines": {"pyspark"},
    "sparkring.pipelines.data": {"pyspark", "horovod", "petastorm"},
}
"""Libraries that a room does without, wherever in the module the import stands."""


def sources() -> dict[str, Path]:
    """Every module of the product, by its import name."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            inside = parts if room == "sparkring" else ("sparkring", *parts)
            found[".".join(inside).removesuffix(".__init__")] = path
    return found


def layer(module: str) -> int:
    """Height of the layer that ``module`` belongs to."""
    return next(height for height, name in enumerate(LAYERS) if module == name or module.startswith(f"{name}."))


def imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, those inside functions and TYPE_CHECKING blocks too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "sparkring":
            yield from ((node.lineno, f"sparkring.{alias.name}") for alias in node.names)  # a room, or a name of the front door
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def complaints(module: str, source: str) -> list[str]:
    """What is wrong with the imports of one module."""
    found = []
    for line, name in imports(source):
        top = name.partition(".")[0]
        if name.startswith(".") or top in ROOMS[:-1]:
            found.append(f"{module}:{line} imports {name}; write sparkring.<room>... in full")
        elif top == "sparkring" and layer(name) > layer(module) and name != "sparkring.__version__":
            found.append(f"{module}:{line} imports {name}, which lies above it")
        for room, libraries in FORBIDDEN.items():
            if top in libraries and (module == room or module.startswith(f"{room}.")):
                found.append(f"{module}:{line} imports {name}, which {room} does without")
    return found


@pytest.mark.parametrize(("module", "path"), [pytest.param(module, path, id=module) for module, path in sources().items()])
def test_a_module_says_what_it_is_for_and_imports_downwards_only(module: str, path: Path) -> None:
    source = path.read_text(encoding="ascii")
    assert ast.get_docstring(ast.parse(source)), f"{module} has no docstring: what is it for, and what does it not do?"
    assert complaints(module, source) == []


def test_all_rooms_are_looked_at() -> None:
    found = sources()
    assert {"sparkring", "sparkring.__main__", "sparkring.errors", "sparkring.conf.schema", "sparkring.models.tabular",
            "sparkring.pipelines.data.manifest", "sparkring.spark_jobs.progress"} <= found.keys()
    assert not [name for name in found if name.rpartition(".")[2] in {"utils", "helpers", "misc", "common"}]


@pytest.mark.parametrize(("module", "source", "complaint"), [
    pytest.param("sparkring.models.x", "from sparkring.pipelines.data.order import f", "lies above it", id="upwards"),
    pytest.param("sparkring.models.x", "from sparkring import spark_jobs", "lies above it", id="upwards through the front door"),
    pytest.param("sparkring.errors", "def f():\n    import sparkring.conf.schema", "lies above it", id="upwards inside a function"),
    pytest.param("sparkring.pipelines.data.x", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame", "does without",
                 id="a library that the room does without, for types only"),
    pytest.param("sparkring.pipelines.training.x", "import pyspark.sql", "does without", id="a library forbidden to all of pipelines"),
    pytest.param("sparkring.models.x", "from . import build", "in full", id="a relative import"),
    pytest.param("sparkring.spark_jobs.x", "from pipelines.data import order", "in full", id="a bare name"),
])
def test_a_planted_mistake_is_found(module: str, source: str, complaint: str) -> None:
    assert [text for text in complaints(module, source) if complaint in text]


@pytest.mark.parametrize(("module", "source"), [
    pytest.param("sparkring.pipelines.training.x", "from sparkring.models.build import build_model\nimport horovod.torch", id="downwards"),
    pytest.param("sparkring.spark_jobs.x", "from sparkring import __version__\nfrom pyspark.sql import DataFrame", id="the version"),
    pytest.param("sparkring.conf.x", "from sparkring.conf.schema import Config", id="its own room"),
])
def test_a_right_import_is_left_alone(module: str, source: str) -> None:
    assert complaints(module, source) == []
