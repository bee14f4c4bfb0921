"""The steps before all others: that the kit is whole, what the machine is, the packages that it lacks, and Horovod built for its torch.

The environment of the check sees the machine's own packages (``gpu_check.sh``). pip takes from the kit only what those do not meet.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.outcome import Findings

TAIL_LINES = 25


class StepFailed(RuntimeError):
    """A step cannot do its work; the message says why."""


def require_whole_kit(kit: Path) -> Findings:
    """Check every file of the kit by its hash.

    Raises:
        StepFailed: some are missing or changed.
    """
    manifest = json.loads((kit / "manifest.json").read_text(encoding="utf-8"))
    wrong = [name for name, digest in manifest["files"].items() if _sha256(kit / name) != digest]
    if wrong:
        raise StepFailed(f"{len(wrong)} files of the kit are missing or changed ({', '.join(wrong[:3])}); copy the folder again.")
    return Findings({name: value for name, value in manifest.items() if name != "files"} | {"files": len(manifest["files"])})


def describe_machine(device: str, *, deadline_s: float) -> Findings:
    """The machine's facts.

    Raises:
        StepFailed: the device cannot be used.
    """
    ended = subprocess.run([sys.executable, "-P", "-m", "benchmarks.gpu_check.machine", device], capture_output=True, text=True,
                           check=False, timeout=deadline_s)
    last = ended.stdout.strip().rpartition("\n")[2]
    if not last.startswith("{"):
        raise StepFailed(f"the machine could not be described: exit code {ended.returncode}\n{_tail(ended.stderr)}")
    facts: dict[str, Any] = json.loads(last)
    if facts["problem"]:
        raise StepFailed(f"the GPU cannot be used: {facts['problem']}; with --cpu the check runs without one.")
    return Findings({name: value for name, value in facts.items() if name != "problem"})


def install_packages(kit: Path, work: Path, *, deadline_s: float) -> Findings:
    """Install sparkring, and of what it and Horovod need what the machine lacks, from the kit alone.

    Raises:
        StepFailed: with pip's last lines.
    """
    wheels = kit / "wheels"
    (pip,) = wheels.glob("pip-*.whl")
    log = work / "log" / "install.txt"
    before = _installed()
    # pip runs out of its own wheel, so the machine needs none.
    _logged([sys.executable, "-P", str(pip / "pip"), *_from(wheels), "--requirement", str(kit / "requirements.txt")], log, deadline_s)
    return Findings({"installed": sorted(_installed() - before), "of the machine": len(before)})


def build_horovod(kit: Path, work: Path, device: str, *, deadline_s: float) -> Findings:
    """Build Horovod by the recipe, from the kit's source, for this machine's torch and with its CUDA toolkit.

    Raises:
        StepFailed: with the build's last lines.
    """
    variables = {"SPARKRING_HOROVOD_SDIST": str(next(kit.glob("horovod-*.tar.gz"))), "SPARKRING_WHEEL_CACHE": str(work / "horovod")}
    if device == "cpu":
        variables["SPARKRING_HOROVOD_CPU"] = "1"
    command = [sys.executable, "-P", "-m", "pip", *_from(kit / "wheels"), "--no-deps", "--no-build-isolation", "--force-reinstall",
               "--verbose", str(kit / "recipe")]
    _logged(command, work / "log" / f"horovod-{device}.txt", deadline_s, **variables)
    return Findings({"kind": horovod_kind()})


def horovod_kind() -> str:
    """``cpu``, ``cu12`` or ``cu13``: what the installed Horovod was built for."""
    from importlib.util import find_spec

    found = find_spec("horovod")
    assert found is not None
    assert found.origin is not None
    return str(json.loads((Path(found.origin).parent / "metadata.json").read_text(encoding="utf-8"))["kind"])


def _from(wheels: Path) -> list[str]:
    return ["--isolated", "--no-cache-dir", "--disable-pip-version-check", "install", "--no-index", "--no-compile",
            "--find-links", str(wheels)]


def _logged(command: list[str], log: Path, deadline_s: float, **variables: str) -> None:
    """Run a command with its output in a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | variables, check=False,
                                  timeout=deadline_s).returncode
        except subprocess.TimeoutExpired:
            raise StepFailed(f"it did not end within {deadline_s:.0f} s; {_last_lines(log)}") from None
    if code:
        raise StepFailed(f"exit code {code}; {_last_lines(log)}")


def _installed() -> set[str]:
    from importlib.metadata import distributions

    return {f"{found.metadata['Name']} {found.version}" for found in distributions()}


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _last_lines(log: Path) -> str:
    return f"its last lines:\n{_tail(log.read_text(encoding='utf-8', errors='replace'))}"


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-TAIL_LINES:])
