"""A real YARN of one resource manager and two node managers on loopback, on top of an HDFS (hadoop.py).

    with yarn(folder, file_system) as cluster: ...       cluster.conf_dir is what HADOOP_CONF_DIR is set to

Each node runs containers as plain processes of this user. Nothing is reachable from outside of this machine. Nodes can be
killed, started again, and started on a small disk of their own, which can be filled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from harness.maven import fetched
from tests.support.daemons import Daemon, daemon
from tests.support.hadoop import QUICK_JVM, Hdfs, java_command, server_jars, write_site
from tests.support.tcp import LOOPBACK, held_ports

JARS = {
    "org/bouncycastle/bcpkix-jdk18on/1.78.1/bcpkix-jdk18on-1.78.1.jar": "4b48ea084e5232b9d79ebca1887b9de037b124931807cd60710748c2aee08cc9",
    "org/bouncycastle/bcprov-jdk18on/1.78.1/bcprov-jdk18on-1.78.1.jar": "add5915e6acfc6ab5836e1fd8a5e21c6488536a8c1f21f386eeb3bf280b702d7",
    "org/bouncycastle/bcutil-jdk18on/1.78.1/bcutil-jdk18on-1.78.1.jar": "d9fa56f97b0f761ce3bc8d9d74c5d7137a987bf5bd3abfe1003f9bafa45a1d2f",
}
"""What the resource manager wants beside the servers' own jars, to make certificates with."""
RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
COMMAND_LINE = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
NODES = 2
NODE_MB, NODE_CORES = 1792, 4
"""What each node has to give: an application master (640) and one executor (1024), so that two executors lie on two nodes. Nobody checks
what containers really take."""
SMALL_DISK_MB = 256
QUEUES = ("default", "training")
SPARK_HOME = Path(pyspark.__file__).parent
EXECUTOR = "YarnCoarseGrainedExecutorBackend"
MASTER = "deploy.yarn.ApplicationMaster"
"""In the command lines of an application's JVMs: an executor, and the driver of cluster mode."""


@dataclass
class _Node:
    daemon: Daemon
    stack: ExitStack
    local: Path
    """Its folder for containers; on a disk of its own, only its processes see what lies there."""

    def kill_containers(self) -> None:
        """End all processes that run in its containers."""
        for process in psutil.process_iter():
            if str(self.local) in _variable(process, "LOCAL_DIRS"):
                with suppress(psutil.Error):
                    process.kill()


class Yarn:
    """A running cluster."""

    def __init__(self, folder: Path, file_system: Hdfs, manager: Daemon, properties: Mapping[str, str]) -> None:
        self.conf_dir = folder / "conf"
        """Of clients."""
        self.logs = folder / "logs"
        """Folder of all containers' logs."""
        self._folder, self._file_system, self._manager, self._properties = folder, file_system, manager, properties
        self._nodes: dict[int, _Node] = {}
        self._starts = 0

    def environment(self) -> dict[str, str]:
        """What leads a client to the cluster, beside this process's own variables."""
        return {**os.environ, "HADOOP_CONF_DIR": str(self.conf_dir), "YARN_CONF_DIR": str(self.conf_dir), "SPARK_LOCAL_IP": LOOPBACK,
                "JAVA_HOME": str(java_home()), "SPARK_HOME": str(SPARK_HOME)}

    # -- nodes ----------------------------------------------------------------------------------------------------------

    def start_node(self, number: int, *, small_disk: bool = False) -> None:
        """Start a node manager and wait until the resource manager knows it.

        Args:
            number: Of the node; it must not run.
            small_disk: Give its containers' folder a disk of ``SMALL_DISK_MB``, which ``fill_disk`` can fill.
        """
        home = self._folder / f"node-{number}-{self._starts}"
        local = home / "local"
        local.mkdir(parents=True)
        conf = write_conf(home / "conf", self._file_system, {**self._properties, **_node(local, self.logs / f"{number}-{self._starts}")})
        command = java_command(jars(), conf, NODE_MANAGER)
        if small_disk:  # in a mount namespace of its own, for which nobody needs to be root
            mount = f'mount -t tmpfs -o size={SMALL_DISK_MB}m tmpfs "$0" && exec "$@"'
            command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(local), *command]
        stack = ExitStack()
        self._nodes[number] = _Node(stack.enter_context(daemon(command, log=home / "log", environment=self._of_daemons())), stack, local)
        self._starts += 1
        self._await_transitions("NEW to RUNNING", self._starts)

    def stop_node(self, number: int) -> None:
        """End a node manager in good order, and what still runs in its containers."""
        node = self._nodes.pop(number)
        node.stack.close()
        node.kill_containers()

    def restart_node(self, number: int) -> None:
        """Start a node manager as it was at first, whether one runs or was killed."""
        if number in self._nodes:
            self.stop_node(number)
        self.start_node(number)

    def kill_node(self, number: int) -> None:
        """Kill a node manager with all its containers, as a machine that loses power does."""
        node = self._nodes.pop(number)
        node.daemon.process.kill()
        node.kill_containers()
        node.stack.close()

    def fill_disk(self, number: int) -> Path:
        """Fill the small disk of a node to the last byte; returns the file that does it, which may be removed again."""
        node = self._nodes[number]
        filler = Path(f"/proc/{node.daemon.process.pid}/root{node.local}/filler")  # seen as that process sees it
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        return filler

    def nodes_lost(self, state: str = "LOST") -> int:
        """How often the resource manager has seen a node go from RUNNING to ``state``: LOST, UNHEALTHY, SHUTDOWN."""
        return self._transitions(f"RUNNING to {state}")

    def close(self) -> None:
        """End all nodes, which nobody asks for a good end any more: that takes each of them 10 s."""
        for number in list(self._nodes):
            self.kill_node(number)

    # -- applications ---------------------------------------------------------------------------------------------------

    def kill_application(self, application: str) -> None:
        """What ``yarn application -kill`` does."""
        subprocess.run(java_command(jars(), self.conf_dir, COMMAND_LINE, "application", "-kill", application), check=True,
                       capture_output=True, timeout=60, env=self.environment())

    def queues(self) -> dict[str, str]:
        """The queue of each application so far."""
        return dict(re.findall(r"Accepted application (\S+) from user: \S+, in queue: (\S+)", self._manager_log()))

    def container_logs(self) -> str:
        """What all containers wrote, for a test that failed."""
        return "\n".join(f"--- {path.relative_to(self.logs)}\n{path.read_text(encoding='utf-8', errors='replace')[-2000:]}"
                         for path in sorted(self.logs.rglob("std*")))

    def _of_daemons(self) -> dict[str, str]:
        return {"JAVA_HOME": str(java_home()), "HADOOP_CONF_DIR": str(self.conf_dir)}  # node managers hand both to containers

    def _await_transitions(self, which: str, count: int) -> None:
        self._manager.until(lambda: self._transitions(which) >= count or None, what=f"{count} nodes from {which}")

    def _transitions(self, which: str) -> int:
        return self._manager_log().count(f"Node Transitioned from {which}")

    def _manager_log(self) -> str:
        return self._manager.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def yarn(folder: Path, file_system: Hdfs) -> Iterator[Yarn]:
    """Run a cluster whose default file system is ``file_system``, for the length of the block."""
    with held_ports(4) as ports:  # the resource manager's clients must know them before it starts
        properties = _common(ports)
        conf = write_conf(folder / "conf", file_system, properties)
        with daemon(java_command(jars(), conf, RESOURCE_MANAGER), log=folder / "resourcemanager.log",
                    environment={"JAVA_HOME": str(java_home()), "HADOOP_CONF_DIR": str(conf)}) as manager:
            manager.said(r"(Transitioned to active state)")
            cluster = Yarn(folder, file_system, manager, properties)
            try:
                for number in range(NODES):  # each registers before an application may come: one without nodes waits without a word
                    cluster.start_node(number)
                yield cluster
            finally:
                cluster.close()


def processes_of(application: str, what: str = "") -> list[psutil.Process]:
    """All processes that run in containers of an application, ranks included, whose command line has ``what``.

    Args:
        application: E.g. ``application_1700000000000_0001``; YARN tells each container its own name.
        what: ``EXECUTOR`` or ``MASTER`` for those JVMs.
    """
    mark = application.replace("application", "container")
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it ended meanwhile, or is not ours to look into
            wanted = not what or (process.name() == "java" and what in " ".join(process.cmdline()))
            if wanted and mark in _variable(process, "CONTAINER_ID"):
                found.append(process)
    return found


def spark_properties() -> dict[str, str]:
    """What a small application on this cluster sets: nothing is uploaded that lies here already, and nothing listens outside."""
    options = " ".join(QUICK_JVM)
    return {"spark.yarn.jars": f"local:{SPARK_HOME}/jars/*", "spark.ui.enabled": "false",
            "spark.driver.bindAddress": LOOPBACK, "spark.executorEnv.SPARK_LOCAL_IP": LOOPBACK,
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": LOOPBACK, "spark.yarn.am.memory": "256m",
            "spark.driver.memory": "512m", "spark.driver.memoryOverhead": "128m",
            "spark.executor.instances": str(NODES), "spark.executor.cores": "1", "spark.executor.memory": "512m",
            "spark.executor.memoryOverhead": "512m", "spark.executor.extraJavaOptions": options, "spark.driver.extraJavaOptions": options,
            "spark.yarn.am.extraJavaOptions": options, "spark.yarn.scheduler.heartbeat.interval-ms": "500",
            "spark.locality.wait": "0s"}


def jars() -> list[Path]:
    """All that the servers of YARN are made of."""
    return [*server_jars(), *fetched(JARS)]


def java_home() -> Path:
    """Where Java lives; containers ask for it."""
    java = os.environ.get("JAVA_HOME") or shutil.which("java")
    assert java, "no Java"
    return Path(java) if "JAVA_HOME" in os.environ else Path(java).resolve().parents[1]


def write_conf(folder: Path, file_system: Hdfs, properties: Mapping[str, str]) -> Path:
    """The file system's configuration, and YARN's beside it; each property in each of YARN's files, as its reader looks into one."""
    shutil.copytree(file_system.conf_dir, folder)
    for app in ("cluster", "node", "yarn"):  # the servers look for the folders of their web pages, which not every jar has
        (folder / "webapps" / app).mkdir(parents=True)
    for name in ("yarn-site.xml", "capacity-scheduler.xml"):
        write_site(folder / name, properties)
    return folder


def _common(ports: list[int]) -> dict[str, str]:
    services = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
    shares = {f"yarn.scheduler.capacity.root.{queue}.{what}": value for queue in QUEUES
              for what, value in (("capacity", str(100 // len(QUEUES))), ("maximum-capacity", "100"), ("user-limit-factor", "10"))}
    return {
        "yarn.resourcemanager.hostname": LOOPBACK, "yarn.resourcemanager.webapp.address": f"{LOOPBACK}:0",
        **{f"yarn.resourcemanager.{service}": f"{LOOPBACK}:{port}" for service, port in zip(services, ports, strict=True)},
        "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler",
        "yarn.scheduler.capacity.root.queues": ",".join(QUEUES), **shares,
        "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9", "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.scheduler.capacity.resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
        "yarn.resourcemanager.am.max-attempts": "2",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "250",  # of a second: what waits for a node's next word waits less
        "yarn.nm.liveness-monitor.expiry-interval-ms": "10000"}


def _node(local: Path, logs: Path) -> dict[str, str]:
    checker = "yarn.nodemanager.disk-health-checker"
    return {
        "yarn.nodemanager.hostname": LOOPBACK, "yarn.nodemanager.address": f"{LOOPBACK}:0",
        "yarn.nodemanager.localizer.address": f"{LOOPBACK}:0", "yarn.nodemanager.webapp.address": f"{LOOPBACK}:0",
        "yarn.nodemanager.local-dirs": str(local), "yarn.nodemanager.log-dirs": str(logs),
        "yarn.nodemanager.resource.memory-mb": str(NODE_MB), "yarn.nodemanager.resource.cpu-vcores": str(NODE_CORES),
        "yarn.nodemanager.pmem-check-enabled": "false", "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.sleep-delay-before-sigkill.ms": "12000",
        f"{checker}.interval-ms": "1000", f"{checker}.max-disk-utilization-per-disk-percentage": "99.9",
        f"{checker}.disk-utilization-watermark-low-per-disk-percentage": "50"}  # a full disk stays bad, whatever containers take with them


def _variable(process: psutil.Process, name: str) -> str:
    """A variable of a process's environment; empty where it has none or is gone."""
    try:
        return process.environ().get(name, "")
    except (psutil.Error, OSError):
        return ""
