"""A Horovod that was built for another torch is told apart before either is imported."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.diagnosis.packages import check_horovod
from sparkring.spark_jobs.diagnosis.survey import installed_packages
from sparkring.spark_jobs.launch.rank.horovod_build import fits, require_fitting_horovod
from tests.support.doctor_samples import machine, needs

ON_IMPORT = {"horovod": "import os\nos._exit(3)\n", "torch": "raise ImportError('a stand-in')\n"}


@pytest.mark.parametrize(("built_for", "kind", "version", "cuda", "expected"), [
    pytest.param("2.13.0+cu130", "cu13", "2.13.0+cu130", "13.0", True, id="the same torch"),
    pytest.param("2.13.0+cu130", "cu13", "2.13.1+cu132", "13.2", True, id="a patch release for the same CUDA"),
    pytest.param("2.13.0+cu130", "cu13", "2.12.0+cu130", "13.0", False, id="another release"),
    pytest.param("2.1.0", None, "2.13.0", None, False, id="versions are not compared as text"),
    pytest.param("2.13.0+cu130", "cu13", "2.13.0+cu126", "12.6", False, id="another CUDA"),
    pytest.param("2.13.0+cu130", "cu13", "2.13.0+cpu", None, False, id="a torch without CUDA"),
    pytest.param("2.13.0+cu130", "cpu", "2.13.0+cpu", None, True, id="a Horovod without CUDA"),
    pytest.param("2.13.0+cu130", None, "2.13.0+cpu", None, True, id="one of another recipe, which does not say"),
])
def test_horovod_fits_the_release_and_the_cuda_that_it_was_built_for(built_for: str, kind: str | None, version: str, cuda: str | None,
                                                                     expected: bool) -> None:
    assert fits(built_for, kind, version=version, cuda=cuda) == expected


def stand_ins(folder: Path, *, built_for: str, torch: str = "2.13.0") -> Path:
    """Packages that cannot be imported, Horovod's import ends the process, with the facts that can be read all the same."""
    for name, source in ON_IMPORT.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(source, encoding="utf-8")
    (folder / "horovod" / "metadata.json").write_text(json.dumps({"pytorch": built_for, "kind": "cpu"}), encoding="utf-8")
    (folder / "torch" / "version.py").write_text(f"__version__ = {torch!r}\ncuda = None\n", encoding="utf-8")
    return folder


def test_what_is_installed_is_looked_at_without_an_import_and_refused_with_the_command_that_mends_it(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(stand_ins(tmp_path, built_for="2.8.0")))
    modules = {name: sys.modules.pop(name) for name in ON_IMPORT if name in sys.modules}
    try:
        with pytest.raises(EnvironmentProblem) as refused:
            require_fitting_horovod()
        (tmp_path / "horovod" / "metadata.json").write_text('{"pytorch": "2.13.1"}', encoding="utf-8")
        require_fitting_horovod()  # and nothing is refused where it fits, or does not say
        (tmp_path / "horovod" / "metadata.json").unlink()
        require_fitting_horovod()
    finally:
        sys.modules.update(modules)
    assert refused.value.found == f"Horovod was built for torch 2.8.0, but {sys.executable} on {socket.gethostname()} has torch 2.13.0"
    assert "`SPARKRING_HOROVOD_CPU=1 " in refused.value.remedy  # as the one that is there: a machine without nvcc cannot build another
    assert refused.value.remedy.endswith(" --no-build-isolation --no-deps ./third_party/horovod`.")


def test_the_horovod_and_the_torch_of_this_environment_fit() -> None:
    require_fitting_horovod()


def test_the_doctor_names_it_and_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(stand_ins(tmp_path, built_for="2.8.0")))
    found = installed_packages()["horovod"]
    check = check_horovod(needs(), machine(packages={"horovod": found}))
    assert check.status == "fail"
    assert "Horovod was built for torch 2.8.0, but" in check.found
    assert check.advice.startswith("Build it for that one: in a checkout of sparkring, `")


def test_control_a_horovod_that_fits_is_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(stand_ins(tmp_path, built_for="2.13.0")))
    assert "ended the process with exit code 3" in installed_packages()["horovod"]["error"]


@pytest.mark.parametrize(("built_abi", "abi", "expected"), [
    pytest.param("FALSE", "TRUE", False, id="another ABI"), pytest.param("FALSE", "FALSE", True, id="the same ABI"),
    pytest.param(None, "TRUE", True, id="an older wheel, which does not say"),
    pytest.param("FALSE", None, True, id="a torch that does not say")])
def test_horovod_fits_the_abi_that_it_was_built_for_where_both_are_known(built_abi: str | None, abi: str | None, expected: bool) -> None:
    assert fits("2.6.0+cu124", "cpu", version="2.6.0+cpu", cuda=None, built_abi=built_abi, abi=abi) == expected


def test_the_abi_of_torch_is_read_from_its_cmake_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(stand_ins(tmp_path, built_for="2.6.0", torch="2.6.0")))
    for name in ON_IMPORT:
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "horovod" / "metadata.json").write_text('{"pytorch": "2.6.0", "kind": "cpu", "cxx11_abi": "TRUE"}', encoding="utf-8")
    config = tmp_path / "torch/share/cmake/Torch/TorchConfig.cmake"
    config.parent.mkdir(parents=True)
    config.write_text('set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")\n', encoding="utf-8")
    require_fitting_horovod()
    config.write_text('set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")\n', encoding="utf-8")
    with pytest.raises(EnvironmentProblem, match=r"Horovod was built for torch 2\.6\.0"):
        require_fitting_horovod()
