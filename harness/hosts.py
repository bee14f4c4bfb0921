"""Several hosts on one machine: namespaces joined by a switch, each with its own address, name, processes, /etc/hosts and /dev/shm.

    with hosts(folder, "alpha", "beta") as (alpha, beta):
        process = subprocess.Popen(alpha.command(["python", ...]))     runs on alpha
        beta.link.cut()                                                the cable to beta is pulled

    switch    a namespace of its own, with a bridge 10.77.0.1 and a port a host
    alpha     10.77.0.2 on eth0 ------ port to-alpha
    beta      10.77.0.3 on eth0 ------ port to-beta

Nothing is made outside these namespaces. Each is held by a shell that ends when its standard input does, so they end with the block,
after a failure, and with this process if it is killed; and with a namespace all its processes and links end. Files are the machine's own,
as on a file system that all hosts mount. Needs root, iproute2 and util-linux (``why_no_hosts``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

NETWORK = "10.77.0"
INTERFACE = "eth0"
DECOY = "docker0"
"""An interface of each host with the address that Docker gives it everywhere: it leads to no other host."""
DEADLINE_S = 20.0
QUEUE_MS = 50
"""Milliseconds that a packet may wait in the queue of a link of limited rate."""
BURST_BYTES = 1 << 17
"""Bytes that a link of limited rate passes at once. TCP hands over 64 KB and their headers: where these do not fit, the kernel cuts them
into packets, which costs the cores what a network card does on real hosts (docs/log)."""
SETUP = """
set -e
hostname "$0"
ip link set lo up
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind "$1" /etc/hosts
if [ -e /etc/resolv.conf ]; then mount --bind /dev/null /etc/resolv.conf; fi  # no name server can be reached, so none is asked
echo ready
read -r _
"""
_NAMESPACES = ("--net", "--uts", "--mount", "--ipc", "--pid")


@dataclass(frozen=True)
class Link:
    """The link between a host and the switch."""

    host: _Namespace
    switch: _Namespace
    port: str

    def cut(self) -> None:
        """Pull the cable: nothing passes, and no connection is told."""
        self.switch.run(["ip", "link", "set", self.port, "down"])

    def heal(self) -> None:
        """Undo ``cut``."""
        self.switch.run(["ip", "link", "set", self.port, "up"])

    def cut_outgoing(self) -> None:
        """Drop what the host sends; it still receives."""
        self.host.run(["tc", "qdisc", "replace", "dev", INTERFACE, "root", "blackhole"])

    def cut_incoming(self) -> None:
        """Drop what is sent to the host; what it sends arrives."""
        self.switch.run(["tc", "qdisc", "replace", "dev", self.port, "root", "blackhole"])

    def limit(self, mbit: float) -> None:
        """Limit the rate of both directions to so many Mb/s."""
        shape = ["root", "tbf", "rate", f"{round(mbit * 1e6)}bit", "burst", str(BURST_BYTES), "latency", f"{QUEUE_MS}ms"]
        self.host.run(["tc", "qdisc", "replace", "dev", INTERFACE, *shape])
        self.switch.run(["tc", "qdisc", "replace", "dev", self.port, *shape])

    def clear(self) -> None:
        """Undo ``cut_outgoing``, ``cut_incoming`` and ``limit``."""
        self.host.run(["tc", "qdisc", "replace", "dev", INTERFACE, "root", "pfifo", "limit", "1000"])
        self.switch.run(["tc", "qdisc", "replace", "dev", self.port, "root", "pfifo", "limit", "1000"])


@dataclass(frozen=True)
class _Namespace:
    """The namespaces of one host, or of the switch, and the shell that holds them."""

    name: str
    pid: int

    def command(self, arguments: Sequence[str | Path]) -> list[str]:
        """The command that runs a program there, in this process's working directory, with this process's environment."""
        return ["nsenter", f"--target={self.pid}", *_NAMESPACES, "--", "env", f"--chdir={Path.cwd()}", *map(str, arguments)]

    def run(self, arguments: Sequence[str]) -> str:
        """Run a program there and return what it writes."""
        ended = subprocess.run(self.command(arguments), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert ended.returncode == 0, f"{' '.join(arguments)} on {self.name}: {ended.stderr.strip()}"
        return ended.stdout


@dataclass(frozen=True)
class Host(_Namespace):
    """A host: see the module."""

    address: str
    link: Link

    @property
    def sent_bytes(self) -> int:
        """Bytes that have left the host."""
        (line,) = (line for line in self.run(["cat", "/proc/net/dev"]).splitlines() if line.strip().startswith(f"{INTERFACE}:"))
        return int(line.partition(":")[2].split()[8])

    def ranks(self) -> list[psutil.Process]:
        """The forked rank processes that run there."""
        return [process for process in psutil.process_iter(["name"]) if (process.info["name"] or "").startswith("rank-")
                and _process_namespace(process.pid) == _process_namespace(self.pid)]

    def vanish(self) -> None:
        """Lose power: the link goes first, so that no connection is told, then every process at once."""
        self.link.cut()
        first = psutil.Process(self.pid)
        first.kill()  # the first process of its namespace: the kernel ends the others with it
        first.wait(DEADLINE_S)


def _process_namespace(pid: int) -> str:
    """Of a process; empty if it has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def why_no_hosts() -> str | None:
    """The reason that hosts cannot be made on this machine, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [program for program in ("ip", "tc", "unshare", "nsenter") if shutil.which(program) is None]
    if missing:
        return f"this machine has no {', '.join(missing)} (Debian, Ubuntu: apt-get install iproute2 util-linux)"
    tried = subprocess.run(["unshare", *_NAMESPACES, "--fork", "--mount-proc", "ip", "link", "add", "sw0", "type", "bridge"],
                           capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return None if tried.returncode == 0 else f"this machine lets root make no namespaces: {tried.stderr.strip()}"


@contextmanager
def hosts(folder: Path, *names: str, loopback_names: Sequence[str] = ()) -> Iterator[tuple[Host, ...]]:
    """Run hosts for the length of the block.

    Args:
        folder: For their /etc/hosts.
        names: Their host names.
        loopback_names: Hosts that resolve their own name to 127.0.1.1, as Debian's installer sets them up.
    """
    addresses = {name: f"{NETWORK}.{place}" for place, name in enumerate(names, start=2)}
    with ExitStack() as stack:
        switch = stack.enter_context(_namespace("switch", folder / "hosts.switch", {}))
        switch.run(["ip", "link", "add", "sw0", "type", "bridge"])
        switch.run(["ip", "address", "add", f"{NETWORK}.1/24", "dev", "sw0"])
        switch.run(["ip", "link", "set", "sw0", "up"])
        made = []
        for name, address in addresses.items():
            known = addresses | ({name: "127.0.1.1"} if name in loopback_names else {})
            held = stack.enter_context(_namespace(name, folder / f"hosts.{name}", known))
            _join(held, switch, address)
            made.append(Host(name, held.pid, address, Link(held, switch, port=f"to-{name}")))
        yield tuple(made)


def _join(host: _Namespace, switch: _Namespace, address: str) -> None:
    """Lay the link. The new interface's namespace is named by a process, so this runs where both processes are seen."""
    subprocess.run(["nsenter", f"--target={switch.pid}", "--net", "--", "ip", "link", "add", f"to-{host.name}", "type",
                    "veth", "peer", "name", INTERFACE, "netns", str(host.pid)], check=True, timeout=DEADLINE_S)
    switch.run(["ip", "link", "set", f"to-{host.name}", "master", "sw0", "up"])
    host.run(["ip", "address", "add", f"{address}/24", "dev", INTERFACE])
    host.run(["ip", "link", "set", INTERFACE, "up"])
    host.run(["ip", "route", "add", "default", "via", f"{NETWORK}.1"])
    host.run(["ip", "link", "add", DECOY, "type", "bridge"])
    host.run(["ip", "address", "add", "172.17.0.1/16", "dev", DECOY])
    host.run(["ip", "link", "set", DECOY, "up"])


@contextmanager
def _namespace(name: str, hosts_file: Path, addresses: dict[str, str]) -> Iterator[_Namespace]:
    hosts_file.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {each}\n" for each, address in addresses.items()), encoding="ascii")
    log = hosts_file.with_name(f"{name}.log")
    with log.open("wb") as errors:
        holder = subprocess.Popen(["unshare", *_NAMESPACES, "--fork", "--mount-proc", "sh", "-c", SETUP, name, str(hosts_file)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"ready\n", f"the namespaces of {name} could not be made: {log.read_text(encoding='utf-8')}"
        yield _Namespace(name, psutil.Process(holder.pid).children()[0].pid)
    finally:
        holder.stdin.close()
        holder.wait(DEADLINE_S)
        holder.stdout.close()
