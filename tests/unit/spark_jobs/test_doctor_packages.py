"""What the doctor says of installed packages. The imports are real ones, in a process of their own, of stand-ins where they must fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkring.spark_jobs.diagnosis.cluster import check_executors
from sparkring.spark_jobs.diagnosis.packages import check_horovod, check_petastorm, check_torch
from sparkring.spark_jobs.diagnosis.survey import PACKAGES, installed_packages
from tests.support.doctor_samples import machine, needs, task

WORKING = {
    "torch": "__version__ = '2.13.0'\nget_num_threads = lambda: 3\nclass cuda:\n    device_count = lambda: 1\n",
    "horovod": "__version__ = '0.28.1'\n", "horovod/torch": "gloo_built = lambda: True\nnccl_built = lambda: 0\n",
    "pyarrow": "__version__ = '14.0.2'\n", "petastorm": "__version__ = '0.13.1'\n", "sparkring": "__version__ = '0.1.0'\n"}


def found_with(monkeypatch: pytest.MonkeyPatch, folder: Path, **sources: str) -> dict[str, dict[str, Any]]:
    """What is found where these stand-ins come first on the path."""
    for name, source in (WORKING | sources).items():
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    return installed_packages()


def test_what_is_installed_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = found_with(monkeypatch, tmp_path)
    assert found["torch"] == {"version": "2.13.0", "threads": 3, "cuda_devices": 1}
    assert found["horovod"] == {"version": "0.28.1", "gloo": True, "nccl": False}
    assert set(found) == set(PACKAGES)


def test_an_import_that_raises_is_told_and_hides_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = found_with(monkeypatch, tmp_path, petastorm="raise ImportError('cannot import name LocalFileSystem')")
    assert found["petastorm"] == {"error": "ImportError: cannot import name LocalFileSystem"}
    assert found["horovod"]["version"] == "0.28.1"


def test_an_import_that_ends_the_process_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = found_with(monkeypatch, tmp_path, **{"horovod/torch": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"})
    assert found["horovod"] == {"error": "importing it ended the process with exit code -11"}
    assert found["torch"]["version"] == "2.13.0"


def test_what_a_package_prints_is_not_taken_for_facts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = found_with(monkeypatch, tmp_path, pyarrow="print('survey', end='')\n__version__ = '14.0.2'\n")
    assert found["pyarrow"] == {"version": "14.0.2"}


def test_horovod_that_cannot_be_imported_fails() -> None:
    check = check_horovod(needs(), machine(packages={"horovod": {"error": "ImportError: undefined symbol"}}))
    assert (check.status, "undefined symbol" in check.found, "make wheels" in check.advice) == ("fail", True, True)


def test_horovod_without_gloo_fails() -> None:
    assert check_horovod(needs(), machine()).status == "ok"
    assert check_horovod(needs(), machine(packages={"horovod": {"version": "0.28.1", "gloo": False, "nccl": False}})).status == "fail"


@pytest.mark.parametrize(("overrides", "status"), [
    ([], "ok"), (["train.ring.device=cuda"], "fail"), (["train.ring.device=cuda", "train.ring.allow_cpu_fallback=true"], "warn")])
def test_nccl_is_asked_for_with_gpus_only(overrides: list[str], status: str) -> None:
    check = check_horovod(needs(*overrides), machine(packages={"horovod": {"version": "0.28.1", "gloo": True, "nccl": False}}))
    assert check.status == status


def test_torch_that_cannot_be_imported_fails() -> None:
    assert check_torch(needs(), machine(packages={"torch": {"error": "OSError: libtorch.so"}})).status == "fail"


def test_more_threads_than_cpus_are_told() -> None:
    job = needs("train.num_ranks=4", "train.ring.threads_per_rank=2")
    assert check_torch(job, machine(cpus=8)).status == "ok"
    check = check_torch(job, machine(cpus=4))
    assert (check.status, "8 threads take turns" in check.found) == ("warn", True)


@pytest.mark.parametrize(("packages", "status", "words"), [
    pytest.param({}, "ok", "petastorm 0.13.1, pyarrow 14.0.2", id="both"),
    pytest.param({"petastorm": {"error": "ModuleNotFoundError: No module named 'petastorm'"}}, "ok", "no petastorm, and none needed",
                 id="no Petastorm"),
    pytest.param({"petastorm": {"error": "ImportError: cannot import name LocalFileSystem"}}, "warn", "cannot import name LocalFileSystem",
                 id="a Petastorm that does not fit Arrow"),
    pytest.param({"pyarrow": {"error": "ModuleNotFoundError: No module named 'pyarrow'"}}, "fail", "pyarrow cannot be imported",
                 id="no Arrow")])
def test_petastorm_may_be_missing_and_a_broken_one_is_told(packages: dict[str, dict[str, Any]], status: str, words: str) -> None:
    check = check_petastorm(machine(packages=packages))
    assert (check.status, words in check.found) == (status, True), check


def test_executors_need_petastorm_only_if_the_driver_has_it() -> None:
    gone = {"petastorm": {"error": "ModuleNotFoundError: No module named 'petastorm'"}}
    without = machine(packages=gone)
    assert check_executors([task(without)], without).status == "ok"
    check = check_executors([task(without)], machine())
    assert (check.status, "petastorm cannot be imported on alpha" in check.found) == ("warn", True)


def test_executors_with_another_numpy_are_named() -> None:
    check = check_executors([task(machine(packages={"numpy": {"version": "2.4.0"}}))], machine())
    assert (check.status, "numpy 2.4.0 on alpha, 1.26.4 here (prepare and score may fail)" in check.found) == ("warn", True)
