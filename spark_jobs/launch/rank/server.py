"""The rank server: a process with all imports done, off which a Spark task forks its ranks, launch after launch.

Started by ``forked.py``, not by hand. Importing torch and Horovod takes seconds of a core, a fork a few milliseconds:

    Spark's Python worker (task after task)          rank server                     rank
      start it ------------------------------------> import torch, Horovod, sparkring
      task 1: place, pipes, a pipe for answers ----> fork ------------------------->  its own session and process group,
                      <--------------------------------------------------- its id     a rank as in main.py
                      <----------------------------- its exit code <----------------  ends
      task 2: the same ----------------------------> fork
      ends, or is killed --------------------------> end the rank, if there is one, with all it started; end

The two communicate over an unnamed pair of sockets, which nobody else can open. The server is the guard of its ranks: it runs only our code
and waits for only two events, and if it is killed itself, the kernel ends the rank. It ignores SIGTERM: what stops a service or a container
may send it to all processes, and the rank, which then saves, would go with the server. A process that a rank starts in a session of its own
(a daemon) is killed with the rank, too: it becomes the server's child when its parent ends.

The fork is safe for three reasons. The server has one thread, which it checks before each fork: a lock held by another thread would
stay locked in the child. It computes nothing, so no OpenMP pool has started. It never touches a GPU. Where ranks have several threads,
OpenBLAS starts threads when numpy is imported; it ends them itself before a fork. Arrow starts a thread that a child would lack, so
nothing that imports Arrow is imported here.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import math
import multiprocessing
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkring.spark_jobs.launch.rank import environment as rank_environment
from sparkring.spark_jobs.launch.rank.main import import_frameworks, rank_main
from sparkring.spark_jobs.launch.rank.quick_exit import QuickExit, flush_output

OFTEN_NEEDED = ("sparkring.conf.schema", "sparkring.models.build", "sparkring.pipelines.parallel.collectives.communicator",
                "sparkring.pipelines.parallel.stages.executor", "safetensors.torch", "cloudpickle")
"""Imports of training and of functions that cloudpickle ships by value, except those that import Arrow. A missing one is skipped."""
NEEDED_TO_TRAIN = "torch._dynamo"
"""An optimizer's first step imports this, in 0.9 s. The server imports it beside its first rank that lasts for ``TRAINS_AFTER_S``, so that
the next one, such as one that replaces a killed rank, has it. Not beside GPUs: the module may look for one, and no fork is safe after that.
"""
TRAINS_AFTER_S = 3.0
GPU_DRIVER = Path("/dev/nvidiactl")
LONGEST_REQUEST = 1 << 17
ENDS_OF_A_REQUEST = 4
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""From Linux's <sys/prctl.h>."""
LOOK_S = 0.005
STRAYS_END_S = 2.0
"""Seconds for killed processes that had left a rank's process group to end; only the kernel can delay them longer."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A task's request for one rank, and the rank's ends of the pipes."""

    device: str
    environment: Mapping[str, str]
    """The variables of this launch alone, see ``rank_environment.varies_by_launch``."""
    orders: int
    output: int
    reports: int
    answers: int
    server: int
    """Process id of the server."""


def main() -> None:
    """Serve: ``python -m sparkring.spark_jobs.launch.rank.server CONTROL_FD``; or, in a forked child, run a rank."""
    leaving = QuickExit()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        control.set_inheritable(False)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # an import that hangs would not see that the task is gone
        problem, tolerated = _import_all()
        _prctl(PR_SET_PDEATHSIG, 0)  # from here on, a rank has to be ended first
        request = _serve(control, problem, tolerated)
    if request is not None:
        _settle(request)
        rank_main(request.orders, request.reports, device=request.device)
        leaving.done = True


def _import_all() -> tuple[str, int]:
    """Import what ranks need.

    Returns:
        The reason that it failed, or an empty text; and the number of OpenBLAS's threads.
    """
    if problem := _unsafe_to_fork(0):
        return problem, 0  # before seconds are spent
    try:
        importlib.import_module("numpy")
        tolerated = _threads() - 1
        import_frameworks()
    except ImportError as error:
        return str(error), 0
    gc.disable()
    for name in OFTEN_NEEDED:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # and stays off: a collection would write to pages that server and ranks share
    return "", tolerated


def _serve(control: socket.socket, problem: str, tolerated: int) -> Request | None:
    """Fork a rank for each request.

    Returns:
        In a forked child its request; in the server None, once the task's process is gone.
    """
    with _ends_of_children() as ended:
        while True:
            message, fds, _, _ = socket.recv_fds(control, LONGEST_REQUEST, ENDS_OF_A_REQUEST)
            if len(fds) != ENDS_OF_A_REQUEST:
                return None  # no message: the task's process is gone
            for fd in fds:
                os.set_inheritable(fd, False)  # noqa: FBT003 (takes no keywords)
            wanted = json.loads(message)
            request = Request(device=wanted["device"], environment=wanted["environment"], orders=fds[0], output=fds[1], reports=fds[2],
                              answers=fds[3], server=os.getpid())
            if problem := problem or _unsafe_to_fork(tolerated):
                answer(request.answers, problem=problem)
                return None
            flush_output()  # a child would write it once more
            rank = os.fork()
            if rank == 0:
                return request
            for fd in (request.orders, request.output, request.reports):
                os.close(fd)
            answer(request.answers, exit=_until_the_end(rank, control, ended))
            os.close(request.answers)


def answer(fd: int, **reply: Any) -> None:
    """Send the task a reply, unless it is gone."""
    with suppress(BrokenPipeError):
        os.write(fd, f"{json.dumps(reply)}\n".encode())


def _unsafe_to_fork(tolerated: int) -> str:
    more = _threads() - 1 - tolerated
    return f"Python or an import started {more} thread(s), and a fork is not safe with them" if more > 0 else ""


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@contextmanager
def _ends_of_children() -> Iterator[int]:
    """A pipe that becomes readable when a child ends. In a forked child, leaving the block undoes all of it."""
    readable, writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # Python writes to the pipe only for signals that it handles
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    try:
        yield readable
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(readable)
        os.close(writable)


def _until_the_end(rank: int, control: socket.socket, ended: int) -> int:
    """Wait for the rank's end, or end it when the task's process is gone; then end all that it started.

    Returns:
        Its exit code; negative: signal.
    """
    events = select.poll()
    events.register(control, 0)  # asks for no event, so the next request wakes nobody and the hang-up does
    events.register(ended, select.POLLIN)
    import_at = math.inf if NEEDED_TO_TRAIN in sys.modules or GPU_DRIVER.exists() else time.monotonic() + TRAINS_AFTER_S
    while os.waitid(os.P_PID, rank, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        left_s = import_at - time.monotonic()
        if left_s <= 0:
            _import_ahead()
            import_at = math.inf
            continue
        for fd, _ in events.poll(None if import_at == math.inf else left_s * 1000):
            if fd == ended:
                with suppress(BlockingIOError):
                    os.read(ended, 1 << 10)
            else:
                events.unregister(control)
                _end_group(rank)
    _end_group(rank)  # before waitpid frees its id for another process
    code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
    _end_strays()
    return code


def _import_ahead() -> None:
    """Import what the next rank needs to train. A module that cannot be imported is for that rank to report."""
    with suppress(Exception):
        importlib.import_module(NEEDED_TO_TRAIN)
    gc.freeze()


def _end_strays() -> None:
    """End what is left of a rank that has ended: this process's children, and their children, which it inherits."""
    until = time.monotonic() + STRAYS_END_S
    while strays := _children():
        for stray in strays:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(stray, signal.SIGKILL)
                os.waitpid(stray, os.WNOHANG)
        if time.monotonic() > until:
            return
        time.sleep(LOOK_S)


def _children() -> list[int]:
    """The ids of this process's children; none if the kernel does not list them."""
    found: list[str] = []
    for listing in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended since
            found += listing.read_text(encoding="ascii").split()
    return [int(child) for child in found]


def _end_group(rank: int) -> None:
    try:
        os.killpg(rank, signal.SIGKILL)
    except ProcessLookupError:  # it does not lead a group yet
        os.kill(rank, signal.SIGKILL)


def _settle(request: Request) -> None:
    """Make a forked child like a fresh process of this launch."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != request.server:
        os._exit(1)  # the server was killed before the call above
    for fd in (1, 2):
        os.dup2(request.output, fd)
    os.close(request.output)
    for name in filter(rank_environment.varies_by_launch, list(os.environ)):
        del os.environ[name]
    os.environ.update(request.environment)
    _take_name(request.environment.get("SPARKRING_TOKEN", ""))
    _forget_shared_secrets()
    importlib.invalidate_caches()  # modules that have come since the server looked
    gc.enable()
    answer(request.answers, pid=os.getpid())
    os.close(request.answers)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


def _take_name(token: str) -> None:
    """Set the name that ``top`` and ``ps`` show; /proc continues to show the server's environment."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(rank_environment.process_name(token), encoding="ascii")


def _forget_shared_secrets() -> None:
    """Draw new seeds and secrets. Python's own generator does so by itself; the global ones of numpy and torch do not."""
    import numpy as np
    import torch

    multiprocessing.current_process().authkey = secrets.token_bytes(32)
    np.random.seed()  # noqa: NPY002 (the global generator is the one in question)
    torch.default_generator.seed()  # not torch.seed, which seeds CUDA too


if __name__ == "__main__":
    main()
