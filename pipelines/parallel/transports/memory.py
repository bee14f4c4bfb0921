"""Messages between two ranks of a host: payloads in shared buffers, announced by datagrams on a Unix socket.

    sender      copies the tensors into a buffer, then sends one datagram: edge, micro-batch, buffer, header; with it goes the buffer's
                file descriptor, the first time
    receiver    sleeps on the socket; copies the buffer out when its message is asked for

The socket also shows at once when the other rank has ended.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from torch import Tensor

from sparkring.errors import PipelineShapeError
from sparkring.pipelines.parallel.shared_memory.buffers import SendBufferPool, SharedBuffer, map_received
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.payload import copies, write
from sparkring.pipelines.parallel.transports.signals import (
    DrainFailed,
    EdgeEnded,
    LinkTimeout,
    MessageRefused,
    PeerEnded,
    seconds_left,
)
from sparkring.pipelines.parallel.transports.tensor_specs import HEADER_BYTES, TensorSpecs, pack_header, unpack_header

PAYLOAD, REFUSAL = 0, 1
_DATAGRAM = struct.Struct("<BxHIII")  # kind, number of the edge, micro-batch, number of the buffer, bytes of the first of two headers
_RECEIVE_BYTES = _DATAGRAM.size + 2 * HEADER_BYTES
_FILES = socket.CMSG_SPACE(4)
_POLL_S = 0.5
"""Seconds between two checks of the thread that sends late datagrams whether the link was closed."""

Datagram = tuple[bytes, int | None]
"""Bytes, and the file descriptor that goes with them."""


class MemoryLink:
    """The link to one rank of the same host."""

    def __init__(self, peer: socket.socket, edges: Sequence[Edge], *, pinned: bool = False) -> None:
        """Take the connected socket.

        Args:
            peer: The socket to the other rank.
            edges: The edges between the two ranks, in any order; both number them alike.
            pinned: Whether messages are received into pinned memory, from where a GPU takes them.
        """
        peer.settimeout(0)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._socket, self._pinned = peer, pinned
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(peer, select.POLLIN)
        self._writable.register(peer, select.POLLOUT)
        self._edges = sorted(edges)
        self._numbers = {edge: number for number, edge in enumerate(self._edges)}
        self._pool = SendBufferPool()
        self._theirs: dict[int, SharedBuffer] = {}
        self._arrived: dict[tuple[int, int], deque[tuple[int, int, bytes, int]]] = {}
        self._late: deque[Datagram] = deque()
        self._changed = threading.Condition()
        self._sender: threading.Thread | None = None
        self._gone = ""

    def send(self, edge: Edge, micro_batch: int, specs: TensorSpecs, tensors: Sequence[Tensor], *, rows: int) -> None:
        """See Link. The tensors are copied, so they may change at once; every datagram holds their specs, whatever the rows."""
        header = pack_header(specs)
        buffer, handle = self._pool.take(specs.nbytes)
        try:
            write(specs, tensors, buffer.payload)
            self._post(_DATAGRAM.pack(PAYLOAD, self._numbers[edge], micro_batch, buffer.number, len(header)) + header, handle)
        except PeerEnded:
            _drop(handle)
            self._raise_refusal()
            raise
        except PipelineShapeError:  # the tensors cannot be sent at all
            _drop(handle)
            raise

    def refuse(self, edge: Edge, micro_batch: int, *, agreed: TensorSpecs, found: TensorSpecs, until: float) -> None:
        """See Link."""
        first, second = pack_header(agreed), pack_header(found)
        self._post(_DATAGRAM.pack(REFUSAL, self._numbers[edge], micro_batch, 0, len(first)) + first + second, None)
        self.drain(until)

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._socket.fileno()

    def has(self, edge: Edge, micro_batch: int) -> bool:
        """Whether a message is here; reads what has come."""
        with suppress(LinkTimeout):
            while not self._arrived.get((self._numbers[edge], micro_batch)):
                self._listen(time.monotonic())
        return bool(self._arrived.get((self._numbers[edge], micro_batch)))

    def expect(self, edge: Edge, micro_batch: int, *, rows: int) -> None:
        """Do nothing: the sender never waits for the receiver."""

    def receive(self, edge: Edge, micro_batch: int, until: float, *, rows: int) -> tuple[TensorSpecs, list[Tensor]]:
        """See Link."""
        key = self._numbers[edge], micro_batch
        while not (queue := self._arrived.get(key)):
            self._listen(until)
        kind, number, headers, length = queue.popleft()
        specs = unpack_header(headers[:length])
        if kind == REFUSAL:
            raise MessageRefused(edge, micro_batch, agreed=specs, found=unpack_header(headers[length:]))
        buffer = self._theirs[number]
        tensors = copies(specs, buffer.payload, pinned=self._pinned)
        buffer.mark(full=False)
        return specs, tensors

    def drain(self, until: float) -> None:
        """See Link; it waits only if the socket was full."""
        with self._changed:
            self._changed.wait_for(lambda: not self._late or self._gone != "", max(0.0, until - time.monotonic()))
            if self._late:
                _, number, micro_batch, _, _ = _DATAGRAM.unpack_from(self._late[0][0])
                raise DrainFailed(self._edges[number], micro_batch, PeerEnded(self._gone) if self._gone else None)

    def close(self) -> None:
        """See Link."""
        with self._changed:
            self._gone = self._gone or "closed"
            for _, handle in self._late:
                _drop(handle)
            self._late.clear()
        self._socket.close()
        self._arrived.clear()
        self._theirs.clear()
        self._pool = SendBufferPool()

    def _raise_refusal(self) -> None:
        """Report a message that the other rank refused before it ended: it explains the end."""
        with suppress(LinkTimeout, PeerEnded):
            while True:
                self._listen(time.monotonic())
        for (edge, micro_batch), queue in self._arrived.items():
            for kind, _, headers, length in queue:
                if kind == REFUSAL:
                    raise MessageRefused(self._edges[edge], micro_batch, agreed=unpack_header(headers[:length]),
                                         found=unpack_header(headers[length:]))

    def _listen(self, until: float) -> None:
        """Wait for the next datagram and read it."""
        while True:
            try:
                data, extra, _, _ = self._socket.recvmsg(_RECEIVE_BYTES, _FILES)
            except BlockingIOError:
                self._readable.poll(max(1, int(seconds_left(until) * 1000)))
                continue
            except ConnectionResetError:  # raised once, if it ended without reading ours; its last datagrams can still be read
                continue
            except OSError as error:
                raise PeerEnded(error.strerror or "its socket is closed") from None
            if not data:
                raise PeerEnded("it closed its end")
            self._keep(data, extra)
            return

    def _keep(self, data: bytes, extra: list[tuple[int, int, bytes]]) -> None:
        kind, edge, micro_batch, number, length = _DATAGRAM.unpack_from(data)
        for _, _, files in extra:
            self._theirs[number] = map_received(number, array.array("i", files)[0])
        self._arrived.setdefault((edge, micro_batch), deque()).append((kind, number, data[_DATAGRAM.size:], length))

    def _post(self, data: bytes, handle: int | None) -> None:
        """Send a datagram; a thread sends it later if the socket is full."""
        with self._changed:
            if self._gone:
                raise PeerEnded(self._gone)
            if not self._late and self._try_send((data, handle)):
                return
            self._late.append((data, handle))
            if self._sender is None:
                self._sender = threading.Thread(target=self._send_late, name="sparkring-datagrams", daemon=True)
                self._sender.start()

    def _try_send(self, datagram: Datagram) -> bool:
        """Whether the socket took it."""
        data, handle = datagram
        files = [] if handle is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handle]).tobytes())]
        try:
            self._socket.sendmsg([data], files)
        except BlockingIOError:
            return False
        except OSError as error:
            self._gone = error.strerror or "its socket is closed"
            raise PeerEnded(self._gone) from None
        _drop(handle)
        return True

    def _send_late(self) -> None:
        """Send late datagrams as the socket empties; return when none is left."""
        while True:
            if not self._gone:
                self._writable.poll(int(_POLL_S * 1000))
            with self._changed:
                with suppress(PeerEnded):
                    while self._late and not self._gone and self._try_send(self._late[0]):
                        self._late.popleft()
                if not self._late or self._gone:
                    self._sender = None
                    self._changed.notify_all()
                    return


def first_of(links: Mapping[Edge, MemoryLink], micro_batch: int, until: float, *, wake: int | None) -> Edge | None:
    """Wait for a message on one of several edges.

    Args:
        links: The link of each edge; the first edge that has a message is taken.
        micro_batch: The messages' number.
        until: When to raise LinkTimeout.
        wake: A descriptor; once it can be read, the wait ends.
    Returns:
        The edge; None if ``wake`` ended the wait.
    Raises:
        EdgeEnded: the rank of one of them has ended.
    """
    poll = select.poll()
    for number in (*(link.fileno() for link in links.values()), *([wake] if wake is not None else [])):
        poll.register(number, select.POLLIN)
    while True:
        for edge, link in links.items():
            try:
                if link.has(edge, micro_batch):
                    return edge
            except PeerEnded as ended:
                raise EdgeEnded(edge, ended) from None
        if any(number == wake for number, _ in poll.poll(max(1, int(seconds_left(until) * 1000)))):
            return None


def _drop(handle: int | None) -> None:
    """Close a buffer's descriptor here: the other rank has received it, or never will."""
    if handle is not None:
        os.close(handle)
