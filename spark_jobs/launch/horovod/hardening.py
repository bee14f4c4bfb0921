"""Changes that ``launcher: horovod.spark`` makes to upstream's launcher while it runs: who can reach it, and how it ends.

    upstream                                                    here
    services listen on every interface                          on the ring's own, which is loopback on one host
    they read messages before they authenticate them            at most MAX_MESSAGE_BYTES, within 10 s, few clients at once
    the rendezvous serves anyone and outlives the run           ``rendezvous.py``: secret, addresses, limits, closed with the run
    a scope of the rendezvous can stay filled after a start     it is removed with its last rank (see ``_launch_job``)
    a dead rank leaves the others waiting for their deadline    they are ended
    the driver's signal handlers are replaced                   they are kept

The services, one on the driver and one in each task, unpickle messages that were signed with the run's key; upstream makes a new key for
each run and sends it through Spark. Functions of upstream's modules are replaced for the duration of one launch, on the driver and in the
tasks. A Horovod without these functions is refused.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import IO, Any, Self

from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.launch.horovod.ranks import HorovodRanks
from sparkring.spark_jobs.launch.meeting.guarded_server import REQUEST_TIMEOUT_S, GuardedHandler, GuardedServer
from sparkring.spark_jobs.launch.meeting.hosts import interface_address

MAX_MESSAGE_BYTES = 16 << 20
"""Largest message to a service: commands, environments, addresses, and a rank's result as JSON."""
SMALL_BYTES = 64 << 10
"""Messages up to this size are read at once, larger ones few at a time: they take memory before their signature is checked."""
_LARGE = threading.BoundedSemaphore(4)
_ONE_LAUNCH = threading.Lock()
_NETWORK, _HTTP, _RUNNER = "horovod.runner.common.util.network", "horovod.runner.http.http_server", "horovod.spark.runner"


@contextmanager
def hardened_launch(interface: str, ranks: HorovodRanks) -> Iterator[None]:
    """On the driver: apply the changes of the table above to ``horovod.spark.run`` in this context.

    Args:
        interface: Name of the interface that the ring uses, on the driver and on every executor.
        ranks: Starts and watches the ranks in place of upstream's ``_launch_job``.
    Raises:
        EnvironmentProblem: this Horovod lacks these functions, or another thread is launching.
    """
    if not _ONE_LAUNCH.acquire(blocking=False):
        raise EnvironmentProblem("another thread is running a ring by launcher horovod.spark, which changes Horovod for all threads; "
                                 "run one at a time, or use launcher: barrier.")
    try:
        with ExitStack() as stack:
            stack.enter_context(hardened_services(interface))
            mapper = _part(_RUNNER, "_make_mapper")
            stack.enter_context(_replaced(_RUNNER, "_make_mapper", lambda *args: partial(_in_task, interface, mapper(*args))))
            stack.enter_context(_replaced(_RUNNER, "_launch_job", lambda _mpi, _gloo, *rest: ranks.run(*rest)))
            yield
    finally:
        _ONE_LAUNCH.release()


@contextmanager
def hardened_services(interface: str) -> Iterator[None]:
    """On the driver and in a task: upstream's services made in this context listen on ``interface`` only and within limits."""
    address = interface_address(interface)
    wire = _part(_NETWORK, "Wire")
    with ExitStack() as stack:
        stack.enter_context(_replaced(_NETWORK, "find_port", partial(_on_address, address)))
        servers = SimpleNamespace(ThreadingTCPServer=_Service, StreamRequestHandler=_Handler)
        stack.enter_context(_replaced(_NETWORK, "socketserver", servers))
        stack.enter_context(_replaced(_NETWORK, "Wire", type("Wire", (wire,), {"read": _read_of(wire)})))
        stack.enter_context(_replaced(_HTTP, "find_port", _refuse))
        yield


def _in_task(interface: str, mapper: Callable[[int, Any], Iterator[Any]], index: int, rows: Any) -> Iterator[Any]:
    """Upstream's task, with its service hardened."""
    with hardened_services(interface):
        yield from mapper(index, rows)


def _on_address(address: str, make: Callable[[tuple[str, int]], Any]) -> tuple[Any, int]:
    """In place of ``find_port``: a server on one address, at a port that the system chooses."""
    server = make((address, 0))
    return server, server.server_address[1]


def _refuse(make: Callable[[tuple[str, int]], Any]) -> tuple[Any, int]:
    raise EnvironmentProblem(f"Horovod wanted to start a server without authentication on every interface ({make.__qualname__}); "
                             "use launcher: barrier.")


class _Service(GuardedServer):
    daemon_threads = False  # upstream finishes the answers that are under way before it closes a service


class _Handler(GuardedHandler):
    max_head_bytes = MAX_MESSAGE_BYTES + 64  # the digest and the length come before the message


class _Capped:
    """Limits the length of reads: upstream takes the length from a message that it has not authenticated yet."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._large = file, ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._large.close()

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_MESSAGE_BYTES:
            raise ConnectionAbortedError(f"a message of {size} bytes; at most {MAX_MESSAGE_BYTES} are accepted")
        if size > SMALL_BYTES:
            if not _LARGE.acquire(timeout=REQUEST_TIMEOUT_S):
                raise ConnectionAbortedError("too many large messages at once")
            self._large.callback(_LARGE.release)
        return self._file.read(size)


def _read_of(wire: type) -> Callable[[Any, IO[bytes]], Any]:
    def read(self: Any, file: IO[bytes]) -> Any:
        with _Capped(file) as capped:
            return wire.read(self, capped)  # type: ignore[attr-defined]
    return read


def _part(module: str, name: str) -> Any:
    found = getattr(importlib.import_module(module), name, None)
    if found is None:
        import horovod
        raise EnvironmentProblem(f"launcher horovod.spark cannot harden Horovod {horovod.__version__}: {module} has no {name}; "
                                 "install horovod 0.28.1, or use launcher: barrier.")
    return found


@contextmanager
def _replaced(module: str, name: str, value: Any) -> Iterator[None]:
    kept = _part(module, name)
    owner = importlib.import_module(module)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)
