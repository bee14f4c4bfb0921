"""Flat bytes between ranks by torch.distributed's Gloo send and recv, in a group of its own beside Horovod.

The group is not torch's default one, so it does not affect other uses of torch.distributed in the process. Its sockets, and the
store on rank 0 by which the ranks find each other, listen on loopback if all ranks are on one host, else on the interface that
Horovod uses, and only while the transport is open.

Gloo's sends and receives cannot be polled, only awaited, and a wait that times out closes the whole group. So this rank waits
for a receive when it needs it, and for sends in ``drain``. Once many bytes are on their way, a thread waits for them
meanwhile, so that their tensors do not pile up.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, distributed

from sparkring.conf.schema import MOST_MICRO_BATCHES
from sparkring.errors import ConfigError, EnvironmentProblem
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.framed import MessageKey
from sparkring.pipelines.parallel.transports.signals import DrainFailed, LinkTimeout, PeerEnded, seconds_left

HELD_BYTES = 8 << 20
"""Bytes on their way above which a thread waits for them."""
NO_TIMEOUT = timedelta(days=1)
LOOPBACK = "127.0.0.1"


class Outgoing(NamedTuple):
    """A message on its way, and the tensor whose memory it needs."""

    key: MessageKey
    work: distributed.Work
    data: Tensor


class GlooWire:
    """Tagged sends and receives; a key's tag follows from the list of edges, which all ranks share."""

    needs_length = True

    def __init__(self, communicator: Communicator, edges: Sequence[Edge]) -> None:
        """Meet the other ranks; every rank of the ring calls this.

        Raises:
            EnvironmentProblem: there are several hosts, and HOROVOD_GLOO_IFACE names no interface to reach them by.
        """
        self._group = _join(communicator)
        between = {edge[:2]: sorted(other for other in edges if other[:2] == edge[:2]) for edge in edges}
        self._numbers = {edge: between[edge[:2]].index(edge) for edge in edges}
        self._posted: dict[MessageKey, tuple[distributed.Work, Tensor]] = {}
        self._held: deque[Outgoing] = deque()
        self._held_bytes = 0
        self._reaper: Reaper | None = None

    def send(self, key: MessageKey, data: Tensor) -> None:
        """See Wire."""
        try:
            work = self._group.send([data], key.edge.target, self._tag(key))
        except RuntimeError as error:
            raise PeerEnded(_cause(error)) from None
        self._held.append(Outgoing(key, work, data))
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES:
            self._reaper = self._reaper or Reaper()
            self._reaper.take(self._held)
            self._held, self._held_bytes = deque(), 0

    def post(self, key: MessageKey, length: int) -> None:
        """See Wire."""
        if key in self._posted:
            return
        buffer = torch.empty(length, dtype=torch.uint8)
        try:
            self._posted[key] = self._group.recv([buffer], key.edge.source, self._tag(key)), buffer
        except RuntimeError as error:
            raise PeerEnded(_cause(error)) from None

    def wait(self, key: MessageKey, until: float) -> Tensor:
        """See Wire."""
        work, buffer = self._posted.pop(key)
        _await(work, until)
        return buffer

    def drain(self, until: float) -> None:
        """See Wire."""
        while self._held:
            key, work, _ = self._held[0]
            try:
                _await(work, until)
            except LinkTimeout:
                raise DrainFailed(key.edge, key.number) from None
            except PeerEnded as ended:
                raise DrainFailed(key.edge, key.number, ended) from None
            self._held.popleft()
        self._held_bytes = 0
        if self._reaper:
            self._reaper.drain(until)

    def close(self) -> None:
        """See Wire."""
        if self._reaper:
            self._reaper.close()
        self._held.clear()
        self._posted.clear()
        self._group = None

    def _tag(self, key: MessageKey) -> int:
        if not 0 <= key.number < MOST_MICRO_BATCHES:
            raise ConfigError(f"micro-batch {key.number} on edge {key.edge} is not below {MOST_MICRO_BATCHES}; "
                              "cut a step into fewer micro-batches.")
        return (self._numbers[key.edge] * MOST_MICRO_BATCHES + key.number) * 2 + key.part


class Reaper:
    """A thread that waits for sends, in their order, and releases their memory."""

    def __init__(self) -> None:
        self._sends: deque[Outgoing] = deque()
        self._changed = threading.Condition()
        self._failure: tuple[MessageKey, str] | None = None
        self._closed = False
        threading.Thread(target=self._run, name="sparkring-sends", daemon=True).start()

    def take(self, sends: deque[Outgoing]) -> None:
        """Wait for these, too."""
        with self._changed:
            self._sends.extend(sends)
            self._changed.notify_all()

    def drain(self, until: float) -> None:
        """Wait until all are done. Raises DrainFailed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._sends or self._failure is not None, max(0.0, until - time.monotonic()))
            if self._failure:
                key, cause = self._failure
                raise DrainFailed(key.edge, key.number, PeerEnded(cause))
            if self._sends:
                raise DrainFailed(self._sends[0].key.edge, self._sends[0].key.number)

    def close(self) -> None:
        """Drop the rest. The thread ends with the send that it waits for, or with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._sends) or self._closed)
                if self._closed or self._failure:
                    return
                first = self._sends[0]
            try:
                first.work.wait(NO_TIMEOUT)
            except RuntimeError as error:
                with self._changed:
                    self._failure = first.key, _cause(error)
                    self._changed.notify_all()
                return
            with self._changed:
                self._sends.popleft()
                del first
                if not self._sends:
                    self._changed.notify_all()


def _await(work: distributed.Work, until: float) -> None:
    left = seconds_left(until)
    try:
        work.wait(timedelta(seconds=left + 0.002))  # Gloo rounds down to milliseconds, and must not time out first
    except RuntimeError as error:
        if time.monotonic() >= until:
            raise LinkTimeout from None
        raise PeerEnded(_cause(error)) from None


def _join(communicator: Communicator) -> Any:
    """A Gloo group of all ranks that listens on no other addresses than they need."""
    context = communicator.context
    several_hosts = len(set(context.hosts)) > 1
    address = _address() if several_hosts else LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        if context.rank == 0:
            listener.bind((address, 0))
            listener.listen(context.size)
        place = f"{address}:{listener.getsockname()[1]}" if context.rank == 0 else ""
        host, _, port = communicator.broadcast_bytes(place.encode(), name="gloo.store").decode().rpartition(":")
        # the store closes the descriptor that it is given, so it gets a duplicate
        store = distributed.TCPStore(  # type: ignore[attr-defined]
            host, int(port), context.size, is_master=context.rank == 0, wait_for_workers=False,
            timeout=timedelta(seconds=context.deadline_s), master_listen_fd=os.dup(listener.fileno()) if context.rank == 0 else None)
    options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way to name the address
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=address, lazy_init=False)]  # noqa: SLF001
    options._timeout = timedelta(seconds=context.deadline_s)  # noqa: SLF001
    group = distributed.ProcessGroupGloo(store, context.rank, context.size, options)
    communicator.barrier("gloo.joined")  # rank 0's store must stay until all have joined
    return group


def _address() -> str:
    """The IPv4 address of the interface by which Horovod reaches other hosts."""
    name = os.environ.get("HOROVOD_GLOO_IFACE", "")
    found = [entry.address for entry in psutil.net_if_addrs().get(name, []) if entry.family == socket.AF_INET]
    if not found:
        raise EnvironmentProblem(f"HOROVOD_GLOO_IFACE={name} names no interface with an IPv4 address on {socket.gethostname()}, "
                                 "and ranks are on several hosts; set it to the interface by which they reach each other.")
    return found[0]


def _cause(error: Exception) -> str:
    """Gloo's message without the position in its source."""
    said = str(error).strip() or type(error).__name__
    return said.splitlines()[0].rpartition("] ")[2][:200]
