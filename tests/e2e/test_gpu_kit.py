"""The check of a GPU the whole way, with the CPU in place of the GPU: a kit filled here, run by a Python that has torch and Arrow alone.

No network is used there: pip would find an index that answers nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from benchmarks.gpu_check.cases import NETWORKS, SPEED, WHOLE
from benchmarks.gpu_check.numerics import Bench, Run, compare_gradients, rounding
from tests.support.linked_packages import link_packages, normalised

ROOT = Path(__file__).resolve().parents[2]
OF_THE_MACHINE = ("torch", "numpy", "pyarrow", "pandas", "safetensors", "pydantic", "typer")
NOT_OF_THE_MACHINE = {"horovod", "pyspark", "petastorm", "scikit-learn", "opencv-python-headless", "sparkring", "cloudpickle", "blake3",
                      "isal"}
STEPS = ["kit", "machine", "packages", "horovod", "ring of one", "gradients", *(f"speed {case.name}" for case in SPEED),
         *(f"train {network.name}" for network in NETWORKS)]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3400)]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled") / "gpu-kit"
    python = "{}.{}".format(*sys.version_info[:2])
    subprocess.run([sys.executable, "-m", "benchmarks.gpu_check.kit", str(folder), "--python", python], cwd=ROOT, check=True, timeout=900)
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of the machine."""
    folder = tmp_path_factory.mktemp("machine")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    linked = link_packages(site, with_what_they_need(OF_THE_MACHINE))
    assert set(OF_THE_MACHINE) <= linked
    assert not linked & NOT_OF_THE_MACHINE
    return folder / "bin" / "python"


def with_what_they_need(names: Iterable[str]) -> dict[str, str]:
    """Name -> version of these packages, and of all that they need, as installed here."""
    found: dict[str, str] = {}
    followed = set()
    waiting = [(name, "") for name in names]  # each with one of its extras, or none: torch asks for cuda-toolkit[cudart]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in followed:
            continue
        followed.add((name, extra))
        try:
            package = distribution(name)
        except PackageNotFoundError:  # for another platform
            continue
        found[name] = package.version
        needed = [one for one in map(Requirement, package.requires or []) if one.marker is None or one.marker.evaluate({"extra": extra})]
        waiting += [(normalised(one.name), more) for one in needed for more in ("", *one.extras)]
    return found


def check(kit: Path, python: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user of the machine would, with a home of its own."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    nowhere = "http://127.0.0.1:9/"
    # Without rustup's programs: pip asks rustc for its version, and rustup notes that in the home.
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if not Path(part, "rustup").exists())
    environment = {"PATH": path, "HOME": str(home), "PYTHON": str(python), "PIP_INDEX_URL": nowhere, "https_proxy": nowhere}
    ended = subprocess.run(["bash", str(kit / "gpu_check.sh"), str(folder), "--cpu", "--minutes", "50"], cwd=folder.parent, env=environment,
                           capture_output=True, text=True, timeout=3200, check=False)
    assert list(home.iterdir()) == [], "it writes into its folder alone"
    return ended


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return found


def test_a_bare_machine_builds_trains_compares_measures_and_reports(kit: Path, python: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in kit.rglob("*")}
    folder = tmp_path / "check"
    ended = check(kit, python, folder)
    assert ended.returncode == 0, (folder / "report.md").read_text(encoding="utf-8") + ended.stderr
    steps = {step["step"]: step for step in report(folder)["steps"]}
    assert list(steps) == STEPS
    assert steps["horovod"]["findings"]["facts"]["kind"] == "cpu"
    installed = {line.split()[0] for line in steps["packages"]["findings"]["facts"]["installed"]}
    assert {"sparkring", "blake3", "isal", "cloudpickle"} <= installed
    assert not installed & {"torch", "numpy", "pyarrow", "safetensors"}, "what the machine has is taken as it is"
    compared = [name for name, step in steps.items() if step["findings"]["checks"]]
    assert compared == ["ring of one", "gradients", *(f"train {network.name}" for network in NETWORKS)]
    assert all(steps[f"speed {case.name}"]["findings"]["facts"]["rows/s"] > 0 for case in SPEED)
    assert {path: path.stat().st_mtime_ns for path in kit.rglob("*")} == before, "the kit stays as it came"

    began = time.time()
    assert check(kit, python, folder).returncode == 0
    assert report(folder)["steps"][2:] == list(steps.values())[2:], "a second call keeps what has passed"
    assert not [path for path in (folder / "runs").rglob("*") if path.stat().st_mtime > began]

    (part,) = (kit / "data/images/data/d1/validation").iterdir()
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + b"!")
    damaged = check(kit, python, folder)
    part.write_bytes(whole)  # the next test reads it
    assert damaged.returncode == 1
    assert damaged.stdout.startswith("failed ")
    assert f"({part.relative_to(kit).as_posix()}); copy the folder again." in damaged.stdout


def test_rounding_is_measured_by_runs_from_weights_moved_by_one_step(kit: Path, tmp_path: Path) -> None:
    bench = Bench(kit=kit, work=tmp_path, device="cpu", remaining_s=lambda: 600.0)
    compare_gradients(bench)  # which also notes the initial weights
    (network,) = (network for network in NETWORKS if network.name == "image, batch norm")
    exact, plain = (Run(bench, network, precision, "cpu") for precision in WHOLE)
    moved = Run(bench, network, "float32", "cpu", moved=1)
    for run in (exact, plain, moved):
        run.train(cores=2)
    found = rounding(bench, network, exact, plain)
    assert 1e-6 < plain.apart(exact).loss <= found.loss < 1e-2
    assert moved.losses != plain.losses
