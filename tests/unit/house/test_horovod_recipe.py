"""third_party/horovod: what follows from a torch, and what is refused. A nightly test (tests/e2e/test_horovod_recipe.py) builds."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import runpy
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "third_party" / "horovod"
MODULES = ("backend", "source", "target", "toolkit")
NCCL = "$ORIGIN/../../nvidia/nccl/lib"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, ModuleType]]:
    """The recipe's modules, imported as a build frontend does, with variables of nobody's shell and a cache of their own."""
    for name in ("TORCH", "CPU", "SDIST"):
        monkeypatch.delenv(f"SPARKRING_HOROVOD_{name}", raising=False)
    monkeypatch.setenv("SPARKRING_WHEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(RECIPE))
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


@pytest.mark.parametrize(("asked", "cpu_only", "torch", "kind", "cxx", "run_path"), [
    ("2.6.0", True, "2.6.0+cu124", "cpu", 17, []),
    ("2.8.0", False, "2.8.0+cu128", "cu12", 17, [NCCL, "$ORIGIN/../../nvidia/cuda_runtime/lib"]),
    ("2.8.0+cpu", False, "2.8.0+cpu", "cpu", 17, []),
    ("2.11.0", False, "2.11.0+cu130", "cu13", 17, [NCCL, "$ORIGIN/../../nvidia/cu13/lib"]),
    ("2.12.1+cu126", False, "2.12.1+cu126", "cu12", 20, [NCCL, "$ORIGIN/../../nvidia/cuda_runtime/lib"]),
    ("2.13.0", False, "2.13.0+cu130", "cu13", 20, [NCCL, "$ORIGIN/../../nvidia/cu13/lib"]),
    ("2.15.0", False, "2.15.0+cu132", "cu13", 20, [NCCL, "$ORIGIN/../../nvidia/cu13/lib"]),
])
def test_a_torch_decides_cuda_the_cxx_standard_and_the_run_path(recipe: dict[str, Any], asked: str, cpu_only: bool, torch: str, kind: str,
                                                                cxx: int, run_path: list[str]) -> None:
    target = recipe["target"].Target.published(asked, cpu_only=cpu_only)
    assert (target.torch, target.kind, target.cxx_standard) == (torch, kind, cxx)
    assert target.run_path == ["$ORIGIN/../../torch/lib", *run_path]


def test_a_torch_that_is_installed_says_for_itself_what_it_is_built_for(recipe: dict[str, Any]) -> None:
    installed = recipe["target"].Target.installed
    assert installed("2.9.0a0+git1234.nv25.09", "13.0", cpu_only=False).kind == "cu13"
    assert installed("2.9.0", None, cpu_only=False).kind == "cpu"
    assert installed("2.9.0", "12.8", cpu_only=True).kind == "cpu"


def test_the_compiler_from_the_index_is_of_torch_s_own_cuda_and_there_is_none_for_cuda_12(recipe: dict[str, Any]) -> None:
    target = recipe["target"].Target
    assert target("2.13.0+cu130", "13.0").compiler_packages()[0] == "nvidia-cuda-nvcc>=13.0,<13.1"
    assert target("2.15.0+cu132", "13.2").compiler_packages()[0] == "nvidia-cuda-nvcc>=13.2,<13.3"
    assert target("2.13.0+cu130", None).compiler_packages() == []
    with pytest.raises(SystemExit, match=r"torch 2\.8\.0\+cu128 is built for CUDA 12\.8; no nvcc of CUDA 12 is here .* set CUDA_HOME"):
        target("2.8.0+cu128", "12.8").compiler_packages()


@pytest.mark.parametrize("other", [
    {"torch": "2.8.0+cpu"}, {"torch": "2.8.1+cu128"}, {"cuda": None}, {"soabi": "cpython-312-x86_64-linux-gnu"}, {"recipe": "b"}])
def test_wheels_are_kept_apart_by_torch_python_kind_and_recipe(recipe: dict[str, Any], other: dict[str, str | None]) -> None:
    def key(**changes: str | None) -> str:
        facts = {"torch": "2.8.0+cu128", "cuda": "12.8", "recipe": "a", "soabi": "cpython-311-x86_64-linux-gnu"} | changes
        target = recipe["target"].Target(facts["torch"], facts["cuda"])
        made: str = target.key(version="0.28.1", recipe=facts["recipe"], soabi=facts["soabi"])
        return made

    assert key() == key(cuda="12.9") == "horovod-0.28.1-a-torch2.8.0+cu128-cpython-311-x86_64-linux-gnu-cu12"
    assert key(**other) != key()


@pytest.mark.parametrize(("asked", "said"), [
    ("2.5.1", r"torch 2\.5\.1, and Horovod's recipe is for 2\.6 to 2\.15; install one"),
    ("2.16.0", r"torch 2\.16\.0, and Horovod's recipe is for 2\.6 to 2\.15; install one"),
    ("2.8", r"SPARKRING_HOROVOD_TORCH=2\.8 is not a version .* such as 2\.8\.0"),
    ("2.7.0+cu118", r"built for CUDA 11\.8, and Horovod's recipe is for CUDA 12 and 13; install a torch for one of these, or set SPARK"),
    ("2.8.0+rocm6.4", r"SPARKRING_HOROVOD_TORCH=2\.8\.0\+rocm6\.4 is not a version"),
])
def test_a_torch_that_was_not_tried_is_refused(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, asked: str, said: str) -> None:
    monkeypatch.setenv("SPARKRING_HOROVOD_TORCH", asked)
    with pytest.raises(SystemExit, match=said):
        recipe["backend"].get_requires_for_build_wheel()


def test_a_python_that_was_not_tried_is_refused(recipe: dict[str, Any]) -> None:
    for version in ((3, 11), (3, 12), (3, 13), (3, 14)):
        recipe["target"].require_python(version)
    with pytest.raises(SystemExit, match=r"this is Python 3\.15, and Horovod's recipe is for 3\.11 to 3\.14; make an environment"):
        recipe["target"].require_python((3, 15))


def test_every_torch_in_range_has_the_cuda_of_its_wheel_on_pypi(recipe: dict[str, Any]) -> None:
    target = recipe["target"]
    (major, first), (_, last) = target.TORCH_FIRST, target.TORCH_LAST
    assert list(target.CUDA_OF_TORCH) == [(major, minor) for minor in range(first, last + 1)]
    assert {int(cuda.partition(".")[0]) for cuda in target.CUDA_OF_TORCH.values()} == set(target.CUDA_LIBRARIES)


def test_what_a_build_asks_for_depends_on_the_variables(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKRING_HOROVOD_CPU", "1")
    asks = recipe["backend"].get_requires_for_build_wheel
    assert {"pip", f"torch=={recipe['target'].DEFAULT_TORCH}"} <= set(asks())
    monkeypatch.setenv("SPARKRING_HOROVOD_TORCH", "2.8.0+cpu")
    monkeypatch.setenv("SPARKRING_HOROVOD_SDIST", "/somewhere/horovod-0.28.1.tar.gz")
    assert "torch==2.8.0+cpu" in asks()
    assert "pip" not in asks()  # nothing is fetched


def test_a_kept_wheel_needs_nothing_and_is_the_one_for_the_torch_that_is_there(
        recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend, target = recipe["backend"], recipe["target"].Target
    here = runpy.run_path(str(backend._torch_folder() / "version.py"))["__version__"]
    other = "2.8.0" if here.startswith("2.9.") else "2.9.0"

    def built() -> str:
        return (tmp_path / backend.build_wheel(str(tmp_path))).read_text(encoding="utf-8")

    monkeypatch.setenv("SPARKRING_HOROVOD_CPU", "1")
    monkeypatch.setenv("SPARKRING_HOROVOD_TORCH", here)
    assert backend.get_requires_for_build_wheel() != []
    for name in (here, other):
        folder = backend._keep_folder(target.published(name, cpu_only=True))
        folder.mkdir(parents=True)
        (folder / "horovod-0.28.1-cp3-none-any.whl").write_text(name, encoding="utf-8")
    assert backend.get_requires_for_build_wheel() == []
    assert built() == here
    monkeypatch.setenv("SPARKRING_HOROVOD_TORCH", other)
    with pytest.raises(SystemExit, match=rf"SPARKRING_HOROVOD_TORCH={other}, but .* has torch {re.escape(here)}; unset the variable"):
        built()
    monkeypatch.setattr(backend, "_torch_folder", lambda: None)  # as in a build environment that needed nothing
    assert built() == other


def test_the_wheel_of_pypi_is_what_the_default_asks_for(recipe: dict[str, Any]) -> None:
    backend, target = recipe["backend"], recipe["target"]
    installed = backend._target_of(backend._torch_folder())
    if installed.torch.partition("+")[0] != target.DEFAULT_TORCH:
        pytest.skip(f"this environment has torch {installed.torch}, not {target.DEFAULT_TORCH}")
    assert installed == target.Target.published(target.DEFAULT_TORCH, cpu_only=False)


def test_an_sdist_that_is_given_is_known_by_its_hash(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, target = recipe["source"], recipe["target"].Target("2.8.0+cpu", None)
    monkeypatch.setenv("SPARKRING_HOROVOD_SDIST", str(tmp_path / "horovod-0.28.1.tar.gz"))
    with pytest.raises(SystemExit, match=r"is no file; name the horovod-0\.28\.1\.tar\.gz of the package index"):
        source.unpack_source(target, tmp_path)
    (tmp_path / "horovod-0.28.1.tar.gz").write_bytes(b"something else")
    with pytest.raises(SystemExit, match=r"has the SHA-256 \w{64}, horovod-0\.28\.1\.tar\.gz has 92a43f5a\w+; get it"):
        source.unpack_source(target, tmp_path)


def test_the_machine_s_cuda_toolkit_is_used_if_its_major_version_is_torch_s(
        recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target, toolkit = recipe["target"].Target, recipe["toolkit"]
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.6, V12.6.85'\n", encoding="utf-8")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert toolkit.machine_toolkit(target("2.8.0+cu128", "12.8")) == tmp_path
    assert toolkit.machine_toolkit(target("2.13.0+cu130", "13.0")) != tmp_path
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(nvcc.parent), prepend=":")
    assert toolkit.machine_toolkit(target("2.8.0+cu128", "12.8")) == tmp_path


def test_without_nccl_nothing_of_cuda_is_linked(recipe: dict[str, Any]) -> None:
    target, edits = recipe["target"].Target, recipe["source"].edits
    without = {edit.file for edit in edits(target("2.13.0+cu130", None))}
    assert without - {edit.file for edit in edits(target("2.13.0+cu130", "13.0"))} == {"cmake/Modules/FindPytorch.cmake"}


def test_where_isolation_is_off_what_is_missing_is_named(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = recipe["backend"]
    monkeypatch.setattr(backend, "_is_installed", lambda module: module != "setuptools.command.bdist_wheel")
    with pytest.raises(SystemExit, match=r"it lacks torch, setuptools>=70\.1; install that there"):
        backend._require_build_tools(None)


def test_the_recipe_s_files_and_the_machine_s_python_are_part_of_a_kept_wheel_s_name(recipe: dict[str, Any]) -> None:
    backend, target = recipe["backend"], recipe["target"].Target("2.8.0+cpu", None)
    name = backend._keep_folder(target).name
    assert name.endswith(f"-torch2.8.0+cpu-{sysconfig.get_config_var('SOABI')}-cpu")


def test_a_wheel_says_which_kind_and_which_c_abi_it_was_built_for(recipe: dict[str, Any]) -> None:
    edits = recipe["source"].edits(recipe["target"].Target("2.6.0+cu124", None))
    assert [edit.new for edit in edits if "dummy" in edit.old] == [r'\"kind\": \"cpu\", \"cxx11_abi\": \"${Pytorch_CXX11}\"']
    horovod = importlib.util.find_spec("horovod")
    assert horovod is not None
    assert horovod.origin is not None
    said = json.loads(Path(horovod.origin).with_name("metadata.json").read_text(encoding="utf-8"))
    assert said["cxx11_abi"] in {"TRUE", "FALSE"}, "what CMake made of it in the Horovod that is installed here"
