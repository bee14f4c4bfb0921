"""The facts of a machine that ranks depend on, found by the same code here and inside Spark tasks.

``cluster.py`` sends this module to executors by value, so it also works where sparkring or torch is missing. So it imports only
the standard library at the top, and uses nothing that some Linux lacks.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import BarrierTaskContext

SCHEMA = "report string"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written to
IMPORT_TIMEOUT_S = 180.0
CONNECT_TIMEOUT_S = 5.0

# Runs in a process of its own: an incompatible library may end the process, and its gigabytes need not stay in this one.
_IMPORTS = """
import contextlib
import json
def look(name, facts):
    try:
        found = facts()
    except BaseException as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    print("\\nsurvey " + json.dumps({name: found}), flush=True)
def version(name):
    return {"version": __import__(name).__version__}
def torch():
    import torch
    return {"version": torch.__version__, "threads": torch.get_num_threads(), "cuda_devices": torch.cuda.device_count()}
def horovod():
    with contextlib.suppress(ImportError):  # another sparkring, or none
        from sparkring.spark_jobs.launch.rank.horovod_build import require_fitting_horovod
        try:
            require_fitting_horovod()
        except RuntimeError as unfit:
            return {"error": unfit.found, "remedy": unfit.remedy}
    import horovod.torch
    return version("horovod") | {"gloo": bool(horovod.torch.gloo_built()), "nccl": bool(horovod.torch.nccl_built())}
look("sparkring", lambda: version("sparkring"))
look("numpy", lambda: version("numpy"))
look("pyarrow", lambda: version("pyarrow"))
look("petastorm", lambda: version("petastorm"))
look("torch", torch)
look("horovod", horovod)
"""
_CGROUP_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_CGROUP_2 = ("memory.max", "memory.current", "inactive_file")
PACKAGES = ("sparkring", "numpy", "pyarrow", "petastorm", "torch", "horovod")


@dataclass(frozen=True)
class Machine:
    """One machine, as the process that looks sees it."""

    host: str
    python: str
    """Version, e.g. ``3.11.7``."""
    executable: str
    cpus: int
    """CPUs that this process may use."""
    free_memory: int
    """Free bytes of the machine, or of the container if that is less."""
    free_shared: int
    """Free bytes of /dev/shm; 0 if there is none."""
    packages: dict[str, dict[str, Any]]
    """Facts of each package, or its ``error``. Empty if another task of the machine looked."""


@dataclass(frozen=True)
class TaskReport:
    """The findings of one Spark task."""

    machine: Machine
    sees_probe: bool | None = None
    """Whether the task sees the driver's file in the workspace; None if there was none."""
    gpus: list[str] = field(default_factory=list)
    """Addresses of the GPUs that Spark assigned to the task."""
    address: str | None = None
    """The address at which the ring would listen; None if the tasks did not meet."""
    interface: str | None = None
    trouble: list[str] = field(default_factory=list)
    """Each reason that this task could not listen, or could not reach another."""

    def to_json(self) -> str:
        """For ``from_json``. Not by ``asdict``: Spark 3.5 ships this class by value to the tasks, and it has no fields there."""
        return json.dumps({**vars(self), "machine": vars(self.machine)})

    @classmethod
    def from_json(cls, text: str) -> TaskReport:
        """Read what ``to_json`` wrote."""
        values = json.loads(text)
        return cls(machine=Machine(**values.pop("machine")), **values)


def this_machine(*, with_packages: bool = True) -> Machine:
    """The facts of this machine; importing the packages takes seconds."""
    return Machine(
        host=socket.gethostname(), python=platform.python_version(), executable=sys.executable, cpus=len(os.sched_getaffinity(0)),
        free_memory=free_memory(), free_shared=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0,
        packages=installed_packages() if with_packages else {})


def survey_task(probe_file: str | None, meet: bool, _: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: FBT001
    """Run one task of the survey: look at the machine and, with ``meet``, listen and connect to the other tasks.

    Args:
        probe_file: A file that the driver wrote, to check whether this machine sees the same folder.
        meet: Whether this is a barrier stage, whose tasks can exchange addresses.
    """
    import pyarrow as pa
    from pyspark import BarrierTaskContext, TaskContext

    context = BarrierTaskContext.get() if meet else TaskContext.get()
    assert context is not None
    gpus = context.resources().get("gpu")
    meeting = _meet(context) if isinstance(context, BarrierTaskContext) else _Meeting()
    report = TaskReport(
        machine=this_machine(with_packages=meeting.first_of_machine), sees_probe=Path(probe_file).exists() if probe_file else None,
        gpus=list(gpus.addresses) if gpus else [], address=meeting.address, interface=meeting.interface, trouble=meeting.trouble)
    yield pa.RecordBatch.from_pydict({"report": [report.to_json()]})


def free_memory() -> int:
    """Bytes that this process could still get without swapping: MemAvailable, or less under a cgroup's limit."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return min([available, *_cgroup_room()])


def installed_packages() -> dict[str, dict[str, Any]]:
    """Import each of ``PACKAGES`` in a new process; return its facts, or why it cannot be imported."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    try:
        run = subprocess.run([sys.executable, "-P", "-c", _IMPORTS], env=environment, capture_output=True, text=True,
                             timeout=IMPORT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {name: {"error": f"importing took more than {IMPORT_TIMEOUT_S:g} s"} for name in PACKAGES}
    found: dict[str, dict[str, Any]] = {}
    for line in run.stdout.splitlines():
        if line.startswith("survey "):
            found |= json.loads(line.removeprefix("survey "))
    died = {"error": f"importing it ended the process with exit code {run.returncode}"}
    return {name: found.get(name, died) for name in PACKAGES}


def _cgroup_room(root: Path = Path("/sys/fs/cgroup"), mine: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Limit minus usage of each memory cgroup of this process, versions 1 and 2; page cache counts as free."""
    rooms = []
    for line in mine.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        first = controllers != ""  # version 1; version 2 names no controllers
        top = root / "memory" if first else root
        files = _CGROUP_1 if first else _CGROUP_2
        leaf = top / path.lstrip("/")
        for folder in (leaf, *leaf.parents):
            room = _room(folder, *files)
            rooms += [] if room is None else [room]
            if folder == top:
                break
    return rooms


def _room(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    """The room of one cgroup; None if it sets no limit or is hidden from this process."""
    try:
        allowed, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if allowed == "max" else max(0, int(allowed) - used + int(statistics.get(cache, 0)))


@dataclass
class _Meeting:
    """The result of meeting the other tasks; the defaults are those of a task that met none."""

    address: str | None = None
    interface: str | None = None
    trouble: list[str] = field(default_factory=list)
    first_of_machine: bool = True
    """Whether this task looks at the packages for all tasks of its machine."""


def _meet(context: BarrierTaskContext) -> _Meeting:
    """Listen where the ring would, send the address to the other tasks, and try to connect to each.

    Every task reaches both barriers even after an error: the others would wait for a missing one.
    """
    meeting, listener = _Meeting(), None
    try:
        meeting.address, meeting.interface = _ring_address(context)
        listener = socket.create_server((meeting.address, 0), backlog=128)
    except Exception as error:  # noqa: BLE001 - reported, whatever it is
        meeting.trouble.append(str(error))
    identity = [socket.gethostname(), sys.executable]
    others = [json.loads(text) for text in context.allGather(json.dumps([identity, listener.getsockname() if listener else None]))]
    meeting.first_of_machine = [other for other, _ in others].index(identity) == context.partitionId()
    with ThreadPoolExecutor(16) as pool:
        meeting.trouble += filter(None, pool.map(_try_to_reach, [place for _, place in others if place]))
    context.barrier()
    if listener:
        listener.close()
    return meeting


def _ring_address(context: BarrierTaskContext) -> tuple[str, str]:
    from sparkring.spark_jobs.launch.meeting.hosts import ring_address

    executors = [info.address.rpartition(":")[0] for info in context.getTaskInfos()]
    return ring_address(executors[context.partitionId()], on_one_host=len(set(executors)) == 1)


def _try_to_reach(place: list[Any]) -> str | None:
    host, port = place
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"{socket.gethostname()} cannot reach {host}:{port} ({error})"
    return None
