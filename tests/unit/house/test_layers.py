"""The house rules that can be read off the source: which room may import which, and what every module must have.

    errors <- conf <- models <- pipelines.data <- pipelines.parallel <- pipelines.training <- spark_jobs <- sparkring

Inside these, each room says in its ``__init__`` docstring what it may import (tests/support/rooms.py reads it).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.rooms import GROUND, ROOT, TOP, Room, modules, parse, rooms, with_table

LAYERS = ("sparkring.errors", "sparkring.extras", "sparkring.version", "sparkring.conf", "sparkring.models",
          "sparkring.pipelines.data", "sparkring.pipelines.parallel", "sparkring.pipelines.training", "sparkring.spark_jobs", "sparkring")
"""From the bottom up; a module belongs to the first that its name lies under."""

FORBIDDEN = {
    "sparkring.errors": {"torch", "pyspark", "horovod", "pydantic", "numpy", "pyarrow", "pandas"},
    "sparkring.conf": {"torch", "pyspark", "horovod", "numpy", "pyarrow", "pandas"},
    "sparkring.models": {"pyspark", "horovod"},
    "sparkring.pipelines": {"pyspark"},
    "sparkring.pipelines.data": {"pyspark", "horovod"},
    "sparkring": {"petastorm"},
}
"""Libraries that a room does without, wherever in the module the import stands."""

MOST_MODULES = 16
"""In one room; more is a list to scroll."""

FRONT_DOOR = Room(name="sparkring", folder="sparkring", what="", not_here="",
                  may_import=("conf", "models", "spark_jobs", "sparkring/cli", "sparkring/estimator", "sparkring/notebook"))
"""Its docstring is the package's own, for users."""


def house() -> dict[str, Room]:
    """Every room by its import name."""
    return rooms() | {"sparkring": FRONT_DOOR}


def layer(module: str) -> int:
    """Height of the layer that ``module`` belongs to."""
    return next(height for height, name in enumerate(LAYERS) if module == name or module.startswith(f"{name}."))


def imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, module or name in it) of every import, those inside functions and TYPE_CHECKING blocks too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{origin}.{alias.name}" if origin.startswith("sparkring") else origin) for alias in node.names)


def module_of(name: str, known: Mapping[str, Path]) -> str:
    """The module that an imported name lies in, or is."""
    return name if name in known else name.rpartition(".")[0]


def room_of(module: str, all_rooms: Mapping[str, Room]) -> str:
    """The room that a module lies in; a package's own ``__init__`` lies in itself."""
    return module if module in all_rooms else module.rpartition(".")[0]


def complaints(module: str, source: str) -> list[str]:
    """What is wrong with the imports of one module."""
    found = []
    known, all_rooms = modules(), house()
    here = all_rooms[room_of(module, all_rooms)]
    for line, name in imports(source):
        top = name.partition(".")[0]
        if name.startswith(".") or top in TOP[:-1]:
            found.append(f"{module}:{line} imports {name}; write sparkring.<room>... in full")
        elif top == "sparkring":
            target = module_of(name, known)
            if target in GROUND:
                continue
            if layer(target) > layer(module):
                found.append(f"{module}:{line} imports {target}, which lies above it")
            elif not here.allows(room_of(target, all_rooms)):
                found.append(f"{module}:{line} imports {target}; {here.folder}/__init__.py does not list that room")
        for room, libraries in FORBIDDEN.items():
            if top in libraries and (module == room or module.startswith(f"{room}.")):
                found.append(f"{module}:{line} imports {name}, which {room} does without")
    return found


def circles(edges: Mapping[str, set[str]]) -> list[str]:
    """One circle of a graph, if it has any."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def import_graph() -> dict[str, set[str]]:
    """Module -> modules it imports. The package's front door imports on first use and is left out."""
    known = modules()
    graph = {module: {module_of(name, known) for _, name in imports(path.read_text(encoding="ascii")) if name.startswith("sparkring.")}
             for module, path in known.items() if module != "sparkring"}
    return {module: targets - {module, "sparkring"} for module, targets in graph.items()}


@pytest.mark.parametrize(("module", "path"), [pytest.param(module, path, id=module) for module, path in modules().items()])
def test_a_module_says_what_it_is_for_and_imports_downwards_only(module: str, path: Path) -> None:
    source = path.read_text(encoding="ascii")
    assert ast.get_docstring(ast.parse(source)), f"{module} has no docstring: what is it for, and what does it not do?"
    assert complaints(module, source) == []


def test_no_module_and_no_room_imports_itself_in_a_circle() -> None:
    graph, all_rooms = import_graph(), house()
    assert circles(graph) == []
    between = {room: set[str]() for room in all_rooms}
    for module, targets in graph.items():
        here = room_of(module, all_rooms)
        between[here] |= {room_of(target, all_rooms) for target in targets if target not in GROUND} - {here}
    assert circles(between) == []


def test_a_planted_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []
    graph = import_graph()
    graph["sparkring.pipelines.data.stores.base"].add("sparkring.pipelines.data.stores.open")
    assert "sparkring.pipelines.data.stores.open" in circles(graph)


def test_no_room_is_a_list_to_scroll() -> None:
    counts = {room.folder: len([path for path in (ROOT / room.folder).glob("*.py") if path.name != "__init__.py"])
              for room in house().values()}
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_what_a_room_may_import_is_there() -> None:
    all_rooms = house()
    unknown = {(room.folder, folder) for room in all_rooms.values() for folder in room.may_import if not (ROOT / folder).is_dir()}
    assert unknown == set()
    with pytest.raises(ValueError, match="needs the lines 'May import"):
        parse("conf", "What to run.")


def test_the_table_of_rooms_says_what_the_rooms_say() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert page == with_table(page), "run `python -m tests.support.rooms`"


def test_all_rooms_are_looked_at() -> None:
    found = modules()
    assert {"sparkring", "sparkring.__main__", "sparkring.errors", "sparkring.conf.schema", "sparkring.models.tabular",
            "sparkring.pipelines.data.dataset.manifest", "sparkring.spark_jobs.spark.progress"} <= found.keys()
    assert not [name for name in found if name.rpartition(".")[2] in {"utils", "helpers", "misc", "common"}]


@pytest.mark.parametrize(("module", "source", "complaint"), [
    pytest.param("sparkring.models.x", "from sparkring.pipelines.data.order.row_order import f", "lies above it", id="upwards"),
    pytest.param("sparkring.models.x", "from sparkring import spark_jobs", "lies above it", id="upwards through the front door"),
    pytest.param("sparkring.pipelines.data.stores.x", "from sparkring.pipelines.data.loading.loader import f", "does not list that room",
                 id="upwards between rooms of one layer"),
    pytest.param("sparkring.pipelines.parallel.shared_memory.x", "from sparkring.pipelines.parallel.transports import base",
                 "does not list that room", id="a module of a room beside it"),
    pytest.param("sparkring.errors", "def f():\n    import sparkring.conf.schema", "lies above it", id="upwards inside a function"),
    pytest.param("sparkring.pipelines.data.order.x", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame", "does without",
                 id="a library that the room does without, for types only"),
    pytest.param("sparkring.pipelines.training.x", "import pyspark.sql", "does without", id="a library forbidden to all of pipelines"),
    pytest.param("sparkring.spark_jobs.etl.x", "def f():\n    from petastorm.unischema import Unischema", "does without",
                 id="Petastorm, whose datasets are written and read without it"),
    pytest.param("sparkring.models.x", "from . import build", "in full", id="a relative import"),
    pytest.param("sparkring.spark_jobs.x", "from pipelines.data import order", "in full", id="a bare name"),
])
def test_a_planted_mistake_is_found(module: str, source: str, complaint: str) -> None:
    assert [text for text in complaints(module, source) if complaint in text]


@pytest.mark.parametrize(("module", "source"), [
    pytest.param("sparkring.pipelines.training.x", "from sparkring.models.build import build_model\nimport horovod.torch", id="downwards"),
    pytest.param("sparkring.spark_jobs.x", "from sparkring.version import __version__\nimport pyspark.sql", id="the version"),
    pytest.param("sparkring.conf.x", "from sparkring.conf.schema import Config", id="a room below it"),
    pytest.param("sparkring.pipelines.data.stores.x", "from sparkring.pipelines.data.stores.base import Store", id="its own room"),
    pytest.param("sparkring.pipelines.parallel.transports.x", "from sparkring.pipelines.parallel.mesh import Mesh", id="what is around it"),
])
def test_a_right_import_is_left_alone(module: str, source: str) -> None:
    assert complaints(module, source) == []
