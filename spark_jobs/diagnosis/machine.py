"""Checks of this machine: Java, memory, disk, shared memory."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkring.conf.schema import Config
from sparkring.errors import SparkringError
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.diagnosis.check import Check, Status, verdict
from sparkring.spark_jobs.diagnosis.needs import MB, SPARK_MB, Needs
from sparkring.spark_jobs.diagnosis.survey import SHARED_MEMORY, Machine

DISK_FAIL_MB, DISK_WARN_MB = 200, 2000
"""With less free space a job would soon stop, or might."""

_INSTALL_JAVA = {
    "debian": "apt-get install openjdk-17-jre-headless", "rhel": "dnf install java-17-openjdk-headless",
    "fedora": "dnf install java-21-openjdk-headless", "suse": "zypper install java-17-openjdk-headless",
    "alpine": "apk add openjdk17-jre-headless"}


def check_java(needs: Needs, *, running: bool = False) -> Check:
    """The Java that Spark would start here. A ``running`` session has its own."""
    import pyspark

    from sparkring.spark_jobs.spark.session import alternatives, java_version, remote_address
    from sparkring.spark_jobs.spark.versions.supported import java_versions

    if running:
        return Check("Java", "ok", "not needed: a Spark session is running")
    remote = remote_address(needs.spark)
    if remote and not remote.startswith("local"):
        return Check("Java", "ok", "not needed here: the session is Spark Connect's")
    found, home = java_version(), os.environ.get("JAVA_HOME")
    where = f"JAVA_HOME={home}" if home else "PATH"
    wanted = java_versions(pyspark.__version__)
    if found in wanted:
        return Check("Java", "ok", f"Java {found} ({where})")
    what = f"Java {found}" if found else "no Java"
    return Check("Java", "fail", f"{what} ({where}), Spark {pyspark.__version__} runs on {alternatives(wanted)}",
                 f"Install one: {install_java()}; then set JAVA_HOME to it if it is not first on PATH.")


def install_java(os_release: Path = Path("/etc/os-release"), platform: str = sys.platform) -> str:
    """The command that installs Java on this operating system."""
    if platform == "darwin":
        return "brew install openjdk@17"
    try:
        pairs = (line.partition("=") for line in os_release.read_text(encoding="utf-8").splitlines())
        facts = {key: value.strip('"') for key, _, value in pairs}
    except OSError:
        facts = {}
    kinds = [facts.get("ID", ""), *facts.get("ID_LIKE", "").split()]
    known = next((_INSTALL_JAVA[kind] for kind in kinds if kind in _INSTALL_JAVA), None)
    return known or " or ".join(f"`{command}`" for command in list(_INSTALL_JAVA.values())[:2])


def check_memory(needs: Needs, machine: Machine) -> Check:
    """Free memory here against what Spark and the ranks that run here take; under half of it fails."""
    ranks = needs.train.num_ranks if needs.local else 0
    need_mb, free_mb = needs.memory_mb(ranks) + SPARK_MB, machine.free_memory / MB
    who = f"{ranks} ranks and Spark need" if ranks else "the driver needs"
    found = f"{free_mb:,.0f} MB free on {machine.host}, {who} about {need_mb:,.0f}"
    if free_mb >= need_mb:
        return Check("memory", "ok", found)
    return Check("memory", "fail" if free_mb < need_mb / 2 else "warn", found,
                 "End other programs, give the container more memory, or use fewer ranks (train.num_ranks) or smaller row groups "
                 "(prepare.row_group_mb).")


def check_disk(needs: Needs) -> Check:
    """Room and permission where results and Spark's shuffles go."""
    problems: list[tuple[Status, str, str]] = []
    workspace = _existing(needs.workspace) if needs.workspace else None
    folders = {"spark.local.dir": _local_dir(needs)} | ({"workspace": workspace} if workspace else {})
    rooms = []
    for what, folder in folders.items():
        free_mb = shutil.disk_usage(folder).free / MB
        rooms.append(f"{free_mb / 1000:,.1f} GB free for {what} ({folder})")
        if not os.access(folder, os.W_OK):
            problems.append(("fail", f"{what}: {folder} cannot be written", f"Name another folder with --set {_key(what)}=FOLDER."))
        if free_mb < DISK_WARN_MB:
            status: Status = "fail" if free_mb < DISK_FAIL_MB else "warn"
            problems.append((status, rooms[-1], f"Free some space, or name another folder with --set {_key(what)}=FOLDER."))
    return verdict("disk", problems, fine=", ".join(rooms))


def check_shared_memory(needs: Needs, machine: Machine, *, ranks: int, config: Config | None) -> Check:
    """Room in /dev/shm for the gradients of ``ranks`` ranks of one host."""
    name, free_mb = "shared memory", machine.free_shared / MB
    if needs.train.ring.device != "cpu" or not needs.train.ring.shared_memory or ranks < 2:
        return Check(name, "ok", f"not used by this job; {free_mb:,.0f} MB free in {SHARED_MEMORY}")
    gradients_mb = gradient_mb(config)
    if gradients_mb is None:
        return Check(name, "ok", f"{free_mb:,.0f} MB free in {SHARED_MEMORY}; how much is needed is known once a dataset is prepared")
    found = f"{free_mb:,.0f} MB free in {SHARED_MEMORY} of {machine.host}, {ranks} ranks need {ranks * gradients_mb:,.1f}"
    if free_mb >= ranks * gradients_mb:
        return Check(name, "ok", found)
    return Check(name, "warn", found, "Give the container more, e.g. docker run --shm-size=1g. Without it ranks sum by the ring alone: "
                                      "slower, with the same result.")


def gradient_mb(config: Config | None) -> float | None:
    """Megabytes of one rank's gradients; None without a dataset, which determines the model's size."""
    if config is None:
        return None
    import torch

    from sparkring.models.build import build_model
    from sparkring.pipelines.data.dataset.versions import Dataset
    from sparkring.pipelines.training.job.tasks import shapes_of

    try:
        manifest = Dataset(config.dataset).manifest(config.dataset_version, fold=config.fold)
        with torch.device("meta"):  # shapes without memory
            model = build_model(config.model, shapes_of(manifest.task, manifest.preprocessing))
    except SparkringError:
        return None
    width = torch.finfo(getattr(torch, config.train.precision)).bits // 8
    return sum(parameter.numel() for parameter in model.parameters()) * width / MB


@contextmanager
def probe_file(needs: Needs) -> Iterator[str | None]:
    """Yield a temporary file in the workspace for executors to look for; None if they need not see it.

    It lies in the nearest existing folder, so the check creates no folder.
    """
    folder = None if needs.workspace is None or needs.local else _writable(needs.workspace)
    if folder is None:
        yield None
        return
    with tempfile.NamedTemporaryFile(prefix=".sparkring-doctor-", dir=folder) as file:
        yield file.name


def _existing(url: str) -> str | None:
    """The nearest existing folder at or above ``url``; None if it is not on a disk of this machine."""
    store = open_store(url)
    if not isinstance(store, LocalStore):
        return None
    path = Path(store.path(""))
    return str(next(folder for folder in (path, *path.parents) if folder.is_dir()))


def _writable(url: str) -> str | None:
    """The same if it can be written; None otherwise, which ``check_disk`` reports."""
    try:
        folder = _existing(url)
    except SparkringError:
        return None
    return folder if folder and os.access(folder, os.W_OK) else None


def _local_dir(needs: Needs) -> str:
    """The folder into which Spark spills on this machine."""
    named = os.environ.get("SPARK_LOCAL_DIRS") or needs.spark.conf.get("spark.local.dir") or tempfile.gettempdir()
    return _existing(named.split(",")[0]) or tempfile.gettempdir()


def _key(what: str) -> str:
    return what if what == "workspace" else f"spark.conf.{what}"
