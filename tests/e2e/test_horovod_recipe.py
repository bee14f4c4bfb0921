"""third_party/horovod builds for another torch than the project's: offline, without isolation, for whatever torch is there.

As on a platform that brings its own torch. torch and the build tools come from the package index, the source from a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "third_party" / "horovod"
TORCH = "2.8.0"  # built for CUDA 12 and read as C++17; the project's is for CUDA 13 and C++20
RING = """
import json

import horovod


def work():
    import horovod.torch as hvd
    import torch

    alone = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
    hvd.init(process_sets=alone)
    mine = torch.full((1000,), float(hvd.rank() + 1))
    everyone = hvd.allreduce(mine, name="everyone", op=hvd.Sum)
    myself = hvd.allreduce(mine, name="myself", op=hvd.Sum, process_set=alone[hvd.rank()])
    return [torch.__version__.partition("+")[0], float(everyone.sum()), float(myself.sum()), hvd.nccl_built()]


if __name__ == "__main__":
    print("ring " + json.dumps(horovod.run(work, num_proc=2, use_gloo=True)))
"""
CHECK = "from sparkring.spark_jobs.launch.rank.horovod_build import require_fitting_horovod; require_fitting_horovod()"

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]


def run(*command: str | Path, **environment: str) -> str:
    """Run a program with these variables and none that points at this environment; returns its stdout."""
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}} | environment
    ended = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=2400, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with that torch, and with Horovod built for it."""
    folder = tmp_path_factory.mktemp("torch")
    run(sys.executable, "-m", "venv", folder)
    interpreter = folder / "bin" / "python"
    pip = (interpreter, "-m", "pip", "install", "--quiet", "--no-compile")
    run(*pip, f"torch=={TORCH}", "setuptools>=77,<81", "packaging", "cmake<4", "cloudpickle", "psutil", "pyyaml", "cffi")
    run(interpreter, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", folder,
        "horovod==0.28.1")
    run(*pip, "--no-index", "--no-deps", "--no-build-isolation", RECIPE,
        SPARKRING_HOROVOD_CPU="1", SPARKRING_HOROVOD_SDIST=str(folder / "horovod-0.28.1.tar.gz"))
    return interpreter


def test_two_ranks_sum_over_all_and_over_process_sets(python: Path, tmp_path: Path) -> None:
    program = tmp_path / "ring.py"
    program.write_text(RING, encoding="utf-8")
    (line,) = (line for line in run(python, program).splitlines() if line.startswith("ring "))
    assert json.loads(line.removeprefix("ring ")) == [[TORCH, 3000.0, 1000.0 * (rank + 1), False] for rank in range(2)]


def test_its_library_finds_torch_wherever_it_is_installed(python: Path) -> None:
    (library,) = python.parents[1].glob("lib/python*/site-packages/horovod/torch/*.so")
    assert "[$ORIGIN/../../torch/lib]" in run("readelf", "-d", library)


def test_it_is_known_to_fit_there_and_refused_beside_this_torch(python: Path) -> None:
    run(python, "-P", "-c", CHECK, PYTHONPATH=str(ROOT))
    (horovod,) = python.parents[1].glob("lib/python*/site-packages/horovod")
    elsewhere = python.parents[1] / "only-horovod"
    elsewhere.mkdir()
    (elsewhere / "horovod").symlink_to(horovod)
    ended = subprocess.run([sys.executable, "-P", "-c", CHECK], env=os.environ | {"PYTHONPATH": f"{elsewhere}{os.pathsep}{ROOT}"},
                           capture_output=True, text=True, timeout=60, check=False)
    assert f"EnvironmentProblem: Horovod was built for torch {TORCH}" in ended.stderr
