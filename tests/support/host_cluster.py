"""A standalone Spark cluster of several hosts (hosts.py): a master, workers and drivers, each on a host of its own.

    with host_cluster(folder, workers=("alpha", "beta")) as cluster:
        with cluster.running("train", config) as command:              sparkring train ... on the host "front"
            cluster.workers["beta"].link.cut()
            assert command.wait(60) == 2
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness.hosts import Host, hosts
from sparkring.conf.schema import Config
from tests.support.configs import MINIMAL, write
from tests.support.daemons import daemon
from tests.support.ring_driver import ROOT, bytecode
from tests.support.spark_cluster import SPARK_CLASS
from tests.support.training import train_config

MASTER = "master"
MASTER_PORT = 7077


@dataclass(frozen=True)
class Running:
    """A command of the command line that runs on a driver's host."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait(self, within_s: float) -> int:
        """Its exit code."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the command still ran after {within_s:g} s; it said:\n{self.said[-4000:]}") from None

    @property
    def said(self) -> str:
        """What it has written so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class HostCluster:
    """The running cluster."""

    folder: Path
    workers: Mapping[str, Host]
    drivers: Mapping[str, Host]
    cores: int
    """Of each worker."""
    environment: Mapping[str, str]

    @contextmanager
    def running(self, *arguments: str, on: str = "front", cores: int | None = None, settings: Mapping[str, Any] | None = None,
                conf: Mapping[str, Any] | None = None) -> Iterator[Running]:
        """Run ``sparkring`` on a driver's host; ended with the block.

        Args:
            arguments: Verb and config.
            on: The host.
            cores: Cores of each executor; default all of its worker.
            settings: Keys of the config, by their dotted names.
            conf: Properties of the session.
        """
        spark = {"spark.driver.host": on, "spark.executor.memory": "512m", "spark.ui.enabled": "false",
                 "spark.executor.cores": cores or self.cores, "spark.cores.max": (cores or self.cores) * len(self.workers),
                 "spark.scheduler.minRegisteredResourcesRatio": 1, **(conf or {})}
        everything = {"spark.master": f"spark://{MASTER}:{MASTER_PORT}", **{f"spark.conf.{key}": value for key, value in spark.items()},
                      **(settings or {})}
        told = [part for key, value in everything.items() for part in ("--set", f"{key}={value}")]
        log = self.folder / f"command-{time.monotonic_ns()}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(self.drivers[on].command([sys.executable, "-m", "sparkring", *arguments, *told]),
                                       env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                       start_new_session=True)
        try:
            yield Running(process, log)
        finally:
            _kill(process)

    def run(self, *arguments: str, within_s: float = 240.0, **options: Any) -> str:
        """Run ``sparkring`` to its end, which must be a good one; returns what it wrote."""
        with self.running(*arguments, **options) as command:
            code = command.wait(within_s)
            assert code == 0, f"exit code {code}; it said:\n{command.said[-4000:]}"
            return command.said


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started."""
    with suppress(psutil.NoSuchProcess):  # it has ended
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait(30)


@contextmanager
def host_cluster(folder: Path, *, workers: Sequence[str], drivers: Sequence[str] = ("front",), cores: int = 2) -> Iterator[HostCluster]:
    """Run a cluster for the length of the block.

    Args:
        folder: For logs and work.
        workers: Names of the hosts with a worker.
        drivers: Names of the hosts on which commands run.
        cores: Slots of each worker.
    """
    environment = {**bytecode(folder), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_DAEMON_MEMORY": "256m"}
    for_daemons = {**environment, "JDK_JAVA_OPTIONS": os.environ.get("SPARK_SUBMIT_OPTS", "")}  # the executors inherit it
    with ExitStack() as stack:
        made = {host.name: host for host in stack.enter_context(hosts(folder, MASTER, *drivers, *workers))}
        master = stack.enter_context(daemon(
            made[MASTER].command([SPARK_CLASS, "org.apache.spark.deploy.master.Master", "--host", MASTER, "--port", str(MASTER_PORT),
                                  "--webui-port", "0"]), log=folder / "master.log", environment=for_daemons))
        address = master.said(r"Starting Spark master at (spark://\S+)")
        started = [stack.enter_context(daemon(
            made[name].command([SPARK_CLASS, "org.apache.spark.deploy.worker.Worker", "--host", name, "--webui-port", "0", "--memory", "2g",
                                "--cores", str(cores), "--work-dir", str(folder / f"work-{name}"), address]),
            log=folder / f"worker-{name}.log", environment=for_daemons)) for name in workers]
        for worker in started:
            worker.said(r"Successfully registered with master (\S+)")
        yield HostCluster(folder, {name: made[name] for name in workers}, {name: made[name] for name in drivers}, cores, environment)


def write_config(workspace: Path, **sections: Any) -> tuple[str, Config]:
    """The minimal config with these sections, as a file for commands and as it is read."""
    config = train_config(workspace, **sections)
    return write(workspace, "job.yaml", {**MINIMAL, "workspace": str(workspace), **sections}), config
