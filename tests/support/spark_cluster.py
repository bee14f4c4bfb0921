"""A standalone Spark master with worker processes, from the classes that pip's pyspark carries, all on loopback.

    with standalone(folder, gpus=("3", "5")) as master: ...        two workers of one slot; each claims one GPU address
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark

DEADLINE_S = 60.0
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@contextmanager
def standalone(folder: Path, *, gpus: Sequence[str], cores: int = 1) -> Iterator[str]:
    """Run a master and one worker for each of ``gpus``.

    Args:
        folder: For logs and work.
        gpus: The address that each worker's discovery script reports, as a script on a machine with GPUs would.
        cores: Slots of each worker.
    Yields:
        The master's address, ``spark://...``.
    """
    with ExitStack() as stack:
        master = stack.enter_context(_daemon(folder, "master", "org.apache.spark.deploy.master.Master"))
        address = _await_line(master, r"Starting Spark master at (spark://\S+)")
        workers = [stack.enter_context(_worker(folder, number, gpu, cores, address)) for number, gpu in enumerate(gpus)]
        for worker in workers:
            _await_line(worker, r"Successfully registered with master (\S+)")
        yield address


@contextmanager
def _worker(folder: Path, number: int, gpu: str, cores: int, master: str) -> Iterator[Path]:
    script = folder / f"discover-{number}.sh"
    script.write_text(f"#!/bin/sh\necho '{{\"name\": \"gpu\", \"addresses\": [\"{gpu}\"]}}'\n", encoding="ascii")
    script.chmod(0o755)
    properties = folder / f"worker-{number}.conf"
    properties.write_text(f"spark.worker.resource.gpu.amount 1\nspark.worker.resource.gpu.discoveryScript {script}\n", encoding="ascii")
    with _daemon(folder, f"worker-{number}", "org.apache.spark.deploy.worker.Worker", "--cores", str(cores), "--memory", "1g",
                 "--work-dir", str(folder / "work"), "--properties-file", str(properties), master) as log:
        yield log


@contextmanager
def _daemon(folder: Path, name: str, main_class: str, *arguments: str) -> Iterator[Path]:
    """A JVM that is ended, with what it started, at the end of the block; yields its log."""
    path = folder / f"{name}.log"
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": sys.executable,
                   "JDK_JAVA_OPTIONS": os.environ.get("SPARK_SUBMIT_OPTS", "")}  # of the daemons, and of the executors that they start
    with path.open("wb") as log:
        process = subprocess.Popen([SPARK_CLASS, main_class, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments],
                                   env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        yield path
    finally:
        process.terminate()  # a worker then ends its executors
        try:
            process.wait(DEADLINE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _await_line(log: Path, pattern: str) -> str:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        found = re.search(pattern, log.read_text(encoding="utf-8", errors="replace"))
        if found:
            return found.group(1)
        time.sleep(0.1)
    raise AssertionError(f"waited {DEADLINE_S:g} s for {pattern!r} in {log}; it ends:\n{log.read_text(encoding='utf-8')[-3000:]}")
