"""The rank process: one rank of a ring, from its imports to its result. Started by ``process.py``, not by hand.

As a program it is a fresh process. A rank forked off the rank server (``server.py``), which has all imports done, starts in
``rank_main``.

It starts before its task knows its rank, so that importing torch and Horovod, which takes seconds, overlaps with the
meeting of the tasks:

    task of Spark                                rank process
      start it --------------------------------> fork the guard; import torch and Horovod
      meet the other tasks
      order: placement, environment, function -> call the function, which calls hvd.init
      result or error <------------------------- report it and stay: a rank that leaves early breaks the others' ring
      all ranks are done: an empty message ----> leave

The function arrives pickled over a pipe from the parent, which has it from the driver inside Spark's own task closure: the
channel by which Spark ships every Python function. Nothing that came over the ring's network is unpickled here.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import IO

from sparkring.pipelines.parallel.context import RankContext
from sparkring.spark_jobs.launch.rank.end import result_to_json
from sparkring.spark_jobs.launch.rank.framing import read_message, write_message
from sparkring.spark_jobs.launch.rank.gpu import check_gpu
from sparkring.spark_jobs.launch.rank.quick_exit import QuickExit


def main() -> None:
    """Run a rank: ``python -m sparkring.spark_jobs.launch.rank.main REPORTS_FD DEVICE``, with orders on standard input."""
    leaving = QuickExit()
    reports_fd, device = int(sys.argv[1]), sys.argv[2]
    # The function finds an empty standard input, and what it starts inherits neither pipe.
    orders_fd = os.dup(0)
    with Path(os.devnull).open("rb") as empty:
        os.dup2(empty.fileno(), 0)
    os.set_inheritable(reports_fd, False)  # noqa: FBT003 (takes no keywords)
    guard = start_guard(orders_fd, reports_fd)
    rank_main(orders_fd, reports_fd, device=device)
    os.kill(guard, signal.SIGKILL)
    os.waitpid(guard, 0)
    leaving.done = True


def rank_main(orders_fd: int, reports_fd: int, *, device: str) -> None:
    """Do the work of a rank in this process, report its result, and stay until the task lets it go.

    Args:
        orders_fd: Pipe from the task.
        reports_fd: Pipe to the task.
        device: ``cpu`` or ``cuda``; for ``cuda`` the rank first checks the GPU.
    """
    orders, reports = os.fdopen(orders_fd, "rb"), os.fdopen(reports_fd, "wb")
    write_message(reports, work(orders, reports, device=device).encode())
    _next(orders)


def start_guard(lifeline_fd: int, *others: int) -> int:
    """Fork a child that ends this process group when the parent of this process is gone.

    A thread could not guarantee that: a rank stuck in native code may hold the interpreter forever. Forked before any
    import, the child is as small as a Python process can be.

    Args:
        lifeline_fd: A pipe whose write end the parent alone holds.
        others: Pipes that the child must not keep open.
    Returns:
        The child's process id.
    """
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SIGTERM may go to the whole group; the guard must stay until the end
    with Path(os.devnull).open("r+b", buffering=0) as nothing:
        for fd in (0, 1, 2, *others):
            os.dup2(nothing.fileno(), fd)
    lifeline = select.poll()
    lifeline.register(lifeline_fd, 0)  # asks for no event, so a message wakes nobody and the hang-up does
    lifeline.poll()
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("the signal ended this process")


def work(orders: IO[bytes], reports: IO[bytes], *, device: str) -> str:
    """Import, take the order, call the function.

    Returns:
        The last report, as JSON: ``kind`` is ``done``, ``raised`` or ``refused``, as in ``RankEnd``.
    """
    try:
        import_frameworks()
    except ImportError as error:
        return json.dumps({"kind": "refused", "summary": f"{sys.executable} cannot import Horovod with torch: {error}; "
                                                         "install sparkring's dependencies for that Python on every executor."})
    write_message(reports, json.dumps({"kind": "imported"}).encode())
    if device == "cuda":
        found = check_gpu()
        write_message(reports, json.dumps({"kind": "device", "summary": found.problem, "uuid": found.uuid}).encode())
    order = json.loads(_next(orders))
    payload = _next(orders)
    os.environ.update(order["env"])
    if order["note"]:
        sys.stderr.write(f"{order['note']}\n")
    placement = order["context"]
    context = RankContext(**placement | {"hosts": tuple(placement["hosts"])})
    try:
        function, args = pickle.loads(payload)  # noqa: S301 (from the driver, by way of Spark's task closure: see above)
        return f'{{"kind": "done", "result": {result_to_json(function(context, *args))}}}'
    except Exception as error:  # noqa: BLE001 (the driver reports every error)
        return _raised(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _next(orders: IO[bytes]) -> bytes:
    """The next message. If the stream has ended, the task is gone: end this process group."""
    message = read_message(orders)
    if message is None:
        os.killpg(0, signal.SIGKILL)
        raise AssertionError("the signal ended this process")
    return message


def import_frameworks() -> None:
    """Import what every rank needs, with the garbage collector off: it would look through a million objects that all stay."""
    gc.disable()
    import horovod.torch  # noqa: F401
    gc.freeze()
    gc.enable()


def _raised(error: Exception) -> str:
    beyond_this_file = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, beyond_this_file))
    return json.dumps({"kind": "raised", "summary": f"{type(error).__name__}: {error}".rstrip(": "), "traceback": text,
                       "awaited": list(getattr(error, "awaited", ()))})


if __name__ == "__main__":
    main()
