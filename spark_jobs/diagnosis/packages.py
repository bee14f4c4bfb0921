"""Checks of the driver's packages: PyTorch, Horovod and its build, Arrow and Petastorm."""

from __future__ import annotations

import re
from typing import Any

from sparkring.extras import how_to_install
from sparkring.spark_jobs.diagnosis.check import Check, Status, sentence, verdict
from sparkring.spark_jobs.diagnosis.needs import Needs
from sparkring.spark_jobs.diagnosis.survey import Machine

BUILD_HOROVOD = "Build it with `make setup` in a checkout, or install the wheel that `make wheels` leaves in dist/."


def check_torch(needs: Needs, machine: Machine) -> Check:
    """PyTorch, and threads against CPUs."""
    facts = machine.packages["torch"]
    if "error" in facts:
        return Check("PyTorch", "fail", f"torch cannot be imported: {facts['error']}", sentence(how_to_install("torch")))
    found = f"torch {facts['version']}, {needs.train.ring.threads_per_rank} thread(s) a rank, {machine.cpus} CPUs here"
    wanted = needs.train.num_ranks * needs.train.ring.threads_per_rank
    if needs.local and needs.train.ring.device == "cpu" and wanted > machine.cpus:
        return Check("PyTorch", "warn", f"{found}: {wanted} threads take turns",
                     f"Lower train.num_ranks or train.ring.threads_per_rank until their product is at most {machine.cpus}.")
    return Check("PyTorch", "ok", found)


def check_horovod(needs: Needs, machine: Machine) -> Check:
    """Horovod and its back ends."""
    facts = machine.packages["horovod"]
    if "error" in facts:
        return Check("Horovod", "fail", f"horovod.torch cannot be imported: {facts['error']}", sentence(facts.get("remedy", BUILD_HOROVOD)))
    problems: list[tuple[Status, str, str]] = []
    if not facts["gloo"]:
        problems.append(("fail", f"Horovod {facts['version']} was built without Gloo", BUILD_HOROVOD))
    if needs.train.ring.device == "cuda" and not facts["nccl"]:
        status: Status = "warn" if needs.train.ring.allow_cpu_fallback else "fail"
        problems.append((status, f"Horovod {facts['version']} was built without NCCL, which GPUs sum with", BUILD_HOROVOD))
    return verdict("Horovod", problems, fine=describe_horovod(facts))


def describe_horovod(facts: dict[str, Any]) -> str:
    """E.g. ``Horovod 0.28.1 with Gloo and NCCL``."""
    built = [name for name, there in (("Gloo", facts["gloo"]), ("NCCL", facts["nccl"])) if there]
    return f"Horovod {facts['version']}" + (f" with {' and '.join(built)}" if built else "")


def check_petastorm(machine: Machine) -> Check:
    """Arrow, and Petastorm if it is there: other readers of our datasets need it, we do not."""
    petastorm, arrow = machine.packages["petastorm"], machine.packages["pyarrow"]
    problems: list[tuple[Status, str, str]] = []
    if "error" in arrow:
        problems.append(("fail", f"pyarrow cannot be imported: {arrow['error']}", "Install it for this Python: pip install pyarrow."))
    missing = is_missing("petastorm", petastorm)
    if "error" in petastorm and not missing:
        problems.append(("warn", f"petastorm cannot be imported: {petastorm['error']}; sparkring does without",
                         f"Uninstall it, or {how_to_install('petastorm')}"))
    found = "no petastorm, and none needed" if missing else f"petastorm {petastorm.get('version')}"
    return verdict("Petastorm", problems, fine=f"{found}, pyarrow {arrow.get('version')}")


def is_missing(name: str, facts: dict[str, Any]) -> bool:
    """Whether a package is not installed, rather than broken."""
    return facts.get("error") == f"ModuleNotFoundError: No module named {name!r}"


def release(version: str) -> tuple[int, ...]:
    """``14.0.2`` -> (14, 0, 2); a suffix is ignored."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
