"""What is shipped: the wheel holds one package with all its parts, works from a zip, and costs little to import.

The import layout that these tests guard is explained in docs/adr/0001-import-layout.md.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.core
from packaging.requirements import Requirement

import sparkring
from sparkring.cli.app import app
from sparkring.conf.loading import load_config, shipped_configs
from tests.support.own_wheel import build_wheel

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("conf", "models", "pipelines", "spark_jobs", "sparkring")


def toml(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


def python(code: str, *, cwd: Path, **environment: str) -> str:
    """Run ``code`` in an interpreter of its own; returns its stdout."""
    ended = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=os.environ | environment, capture_output=True, text=True,
                           timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def packages_on_disk() -> dict[str, str]:
    """Import name -> folder of everything that has an ``__init__.py``."""
    folders = [path.parent.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("__init__.py")]
    return {".".join(folder.parts if folder.parts[0] == "sparkring" else ("sparkring", *folder.parts)): folder.as_posix()
            for folder in folders}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("source"))


def test_the_wheel_installs_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        assert {name.split("/")[0] for name in content.namelist()} == {"sparkring", f"sparkring-{sparkring.__version__}.dist-info"}


def test_the_wheel_holds_every_file_of_every_room(wheel: Path) -> None:
    expected = {f"{package.replace('.', '/')}/{file.name}" for package, folder in packages_on_disk().items()
                for file in (ROOT / folder).iterdir() if file.is_file()}
    expected |= {f"sparkring/conf/{file.relative_to(ROOT / 'conf').as_posix()}" for file in (ROOT / "conf").rglob("*.yaml")}
    with zipfile.ZipFile(wheel) as content:
        assert {name for name in content.namelist() if name.startswith("sparkring/")} == expected


def test_the_wheel_renamed_to_zip_imports_and_finds_its_files(wheel: Path, tmp_path: Path) -> None:
    shutil.copy(wheel, tmp_path / "sparkring.zip")  # what --py-files takes: Spark puts .zip on the path of executors, not .whl
    code = ("import importlib, pkgutil, sparkring\n"
            "from sparkring.conf.loading import load_config, shipped_configs\n"
            "for module in pkgutil.walk_packages(sparkring.__path__, 'sparkring.'):\n"
            "    importlib.import_module(module.name) if module.name != 'sparkring.__main__' else None\n"
            "print(sparkring.__file__, load_config('local/flights').name, len(shipped_configs()))")
    file, name, configs = python(code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "sparkring.zip")).split()
    assert file == str(tmp_path / "sparkring.zip" / "sparkring" / "__init__.py")
    assert (name, int(configs)) == (load_config("local/flights").name, len(shipped_configs()))


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "sparkring"])
def test_a_bare_room_name_is_refused_with_the_right_one(room: str) -> None:
    code = f"try: import {room}\nexcept ImportError as error: print(error)"
    assert python(code, cwd=ROOT).startswith(f"import sparkring.{room}, not {room}: ")


def test_a_folder_of_the_user_s_with_the_name_of_a_room_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("THEIRS = True\n")
    code = "import models, sparkring.models; print(models.THEIRS, sparkring.models.__name__)"
    assert python(code, cwd=tmp_path) == "True sparkring.models"


def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = "{'torch', 'pyspark', 'horovod', 'petastorm', 'pandas', 'numpy', 'pyarrow', 'matplotlib', 'pydantic'}"
    assert python(f"import sys, sparkring; print({heavy} & sys.modules.keys())", cwd=ROOT) == "set()"


def test_every_public_name_is_there_and_listed() -> None:
    assert dir(sparkring) == sorted(sparkring.__all__)
    for name in sparkring.__all__:
        assert getattr(sparkring, name) is not None
    with pytest.raises(AttributeError, match=r"no attribute 'trian'; public names: .*train"):
        sparkring.trian  # noqa: B018


def test_the_version_is_the_same_everywhere() -> None:
    assert importlib.metadata.version("sparkring") == sparkring.__version__


@pytest.mark.parametrize("name", ["horovod", "petastorm"])
def test_a_recipe_builds_the_version_that_the_project_pins(name: str) -> None:
    version = toml(f"third_party/{name}/pyproject.toml")["project"]["version"]
    extras = toml("pyproject.toml")["project"]["optional-dependencies"]
    assert f"{name}=={version}" in extras["train"] + extras["petastorm"]
    recipe = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "third_party" / name).glob("*.py"))
    assert f'VERSION = "{version}"' in recipe


def test_horovod_is_built_against_the_torch_that_it_runs_beside() -> None:
    (torch,) = [package["version"] for package in toml("uv.lock")["package"] if package["name"] == "torch"]
    assert f'DEFAULT_TORCH = "{torch}"' in (ROOT / "third_party" / "horovod" / "target.py").read_text(encoding="utf-8")
    assert set(re.findall(r"\btorch==([\d.]+)", (ROOT / "README.md").read_text(encoding="utf-8"))) == {torch}


@pytest.mark.parametrize("name", ["horovod", "petastorm"])
def test_a_recipe_declares_what_its_wheel_requires(name: str) -> None:
    installed = [Requirement(entry) for entry in importlib.metadata.requires(name) or []]
    needed = [entry for entry in installed if entry.marker is None or entry.marker.evaluate({"extra": ""})]
    declared = [Requirement(entry) for entry in toml(f"third_party/{name}/pyproject.toml")["project"]["dependencies"]]
    assert {(entry.name.lower(), entry.specifier) for entry in declared} == {(entry.name.lower(), entry.specifier) for entry in needed}


def test_without_a_compiler_horovod_s_recipe_says_what_to_install(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import backend; backend.get_requires_for_build_wheel()"],
                           cwd=ROOT / "third_party" / "horovod", capture_output=True, text=True, check=False, timeout=60,
                           env={"PATH": str(tmp_path), "SPARKRING_WHEEL_CACHE": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"})
    assert ended.returncode == 1
    assert ended.stderr == (
        "Horovod is built from source and there is no g++ and no make on PATH; install a C++ compiler and make "
        "(Debian, Ubuntu: `apt-get install g++ make`; RHEL: `dnf install gcc-c++ make`) and run this again.\n")


@pytest.mark.parametrize("name", shipped_configs())
def test_a_shipped_config_is_valid(name: str) -> None:
    assert load_config(name).name


def test_there_is_a_shipped_config_for_each_place_to_run() -> None:
    assert {name.partition("/")[0] for name in shipped_configs()} == {"base", "local", "yarn", "databricks"}


def test_continuous_integration_runs_the_readme_s_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text(encoding="utf-8")


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


def test_make_help_lists_every_target() -> None:
    phony = set(re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert phony == make_targets()
    command = ["make", "--no-print-directory", "help"]  # under `make test` a make names its directory otherwise
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert {line.split()[1] for line in shown.splitlines()} == phony


@pytest.mark.parametrize(("page", "must_name"), [("README.md", {"demo", "test"}), ("CONTRIBUTING.md", {"test", "lint"})])
def test_what_a_page_tells_people_to_run_and_to_read_is_there(page: str, must_name: set[str]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`|^ {4}\S[^\n]*$", text, flags=re.DOTALL | re.MULTILINE))
    assert must_name <= set(re.findall(r"\bmake ([a-z-]+)", code)) <= make_targets()
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    named = set(re.findall(r"^[ `$]*(?:uv run |\.venv/bin/)?sparkring ([a-z]+(?:-[a-z]+)*)\b", code, flags=re.MULTILINE))
    assert named <= command.commands.keys()
    for benchmark in re.findall(r"-m benchmarks\.(\w+)", code):
        assert (ROOT / "benchmarks" / f"{benchmark}.py").is_file(), f"{page} names benchmarks.{benchmark}"
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert "://" in target or (ROOT / target).exists(), f"{page} links to {target}"
