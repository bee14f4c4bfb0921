"""Messages between two ranks of a host: payloads in shared buffers, and a Unix socket that says what lies where.

    sender      copies the tensors into a buffer, then one datagram: edge, slot, buffer, header  (with the buffer's file, once)
    receiver    sleeps on the socket; copies the buffer out when somebody asks for that message

The socket also tells at once when the other rank has ended. Each rank's listening socket lies in /dev/shm, mode 0600, named
by the launch's random token, and is gone when all have connected.
"""

from __future__ import annotations

import array
import os
import resource
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from sparkring.errors import PipelineShapeError
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.shared_memory.buffers import SendBufferPool, SharedBuffer, map_received
from sparkring.pipelines.parallel.shared_memory.named_files import socket_path
from sparkring.pipelines.parallel.transports.base import DrainFailed, Edge, MessageRefused
from sparkring.pipelines.parallel.transports.journal import LinkTimeout, PeerEnded, seconds_left
from sparkring.pipelines.parallel.transports.payload import HEADER_BYTES, TensorSpecs, copies, pack_header, unpack_header, write

PAYLOAD, REFUSAL = 0, 1
_WORD = struct.Struct("<BxHIII")  # kind, number of the edge, slot, number of the buffer, bytes of the first of two headers
_RECEIVE_BYTES = _WORD.size + 2 * HEADER_BYTES
_FILES = socket.CMSG_SPACE(4)
_HAND_OVER_S = 0.5

Datagram = tuple[bytes, int | None]
"""Bytes, and the file that goes with them."""


class MemoryLink:
    """The link to one rank of the same host."""

    def __init__(self, peer: socket.socket, edges: Sequence[Edge]) -> None:
        """Take the connected socket; both ranks number their edges alike."""
        peer.settimeout(0)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._socket = peer
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(peer, select.POLLIN)
        self._writable.register(peer, select.POLLOUT)
        self._edges = sorted(edges)
        self._numbers = {edge: number for number, edge in enumerate(self._edges)}
        self._pool = SendBufferPool()
        self._theirs: dict[int, SharedBuffer] = {}
        self._arrived: dict[tuple[int, int], deque[tuple[int, int, bytes, int]]] = {}
        self._late: deque[Datagram] = deque()
        self._calm = threading.Condition()
        self._hands: threading.Thread | None = None
        self._gone = ""

    def send(self, edge: Edge, slot: int, specs: TensorSpecs, tensors: Sequence[Tensor], *, rows: int) -> None:
        """See Link: the tensors are copied, so they may change at once. Shapes go with the datagram, whatever the rows."""
        header = pack_header(specs)
        buffer, handle = self._pool.take(specs.nbytes)
        try:
            write(specs, tensors, buffer.payload)
            self._tell(_WORD.pack(PAYLOAD, self._numbers[edge], slot, buffer.number, len(header)) + header, handle)
        except PeerEnded:
            _drop(handle)
            self._raise_refusal()
            raise
        except PipelineShapeError:  # of what cannot be sent at all
            _drop(handle)
            raise

    def refuse(self, edge: Edge, slot: int, *, agreed: TensorSpecs, found: TensorSpecs, until: float) -> None:
        """See Link."""
        first, second = pack_header(agreed), pack_header(found)
        self._tell(_WORD.pack(REFUSAL, self._numbers[edge], slot, 0, len(first)) + first + second, None)
        self.drain(until)

    def expect(self, edge: Edge, slot: int, *, rows: int) -> None:
        """Nothing to do: the sender never waits for us."""

    def receive(self, edge: Edge, slot: int, until: float, *, rows: int) -> tuple[TensorSpecs, list[Tensor]]:
        """See Link."""
        key = self._numbers[edge], slot
        while not (queue := self._arrived.get(key)):
            self._listen(until)
        kind, number, headers, length = queue.popleft()
        specs = unpack_header(headers[:length])
        if kind == REFUSAL:
            raise MessageRefused(edge, slot, agreed=specs, found=unpack_header(headers[length:]))
        buffer = self._theirs[number]
        tensors = copies(specs, buffer.payload)
        buffer.mark(full=False)
        return specs, tensors

    def drain(self, until: float) -> None:
        """See Link: waits only for a socket that was full."""
        with self._calm:
            self._calm.wait_for(lambda: not self._late or self._gone != "", max(0.0, until - time.monotonic()))
            if self._late:
                _, number, slot, _, _ = _WORD.unpack_from(self._late[0][0])
                raise DrainFailed(self._edges[number], slot, PeerEnded(self._gone) if self._gone else None)

    def close(self) -> None:
        """See Link."""
        with self._calm:
            self._gone = self._gone or "closed"
            for _, handle in self._late:
                _drop(handle)
            self._late.clear()
        self._socket.close()
        self._arrived.clear()
        self._theirs.clear()
        self._pool = SendBufferPool()

    def _raise_refusal(self) -> None:
        """Where the other rank has refused a message before it ended: that is worth more than its end."""
        with suppress(LinkTimeout, PeerEnded):
            while True:
                self._listen(time.monotonic())
        for (edge, slot), queue in self._arrived.items():
            for kind, _, headers, length in queue:
                if kind == REFUSAL:
                    raise MessageRefused(self._edges[edge], slot, agreed=unpack_header(headers[:length]),
                                         found=unpack_header(headers[length:]))

    def _listen(self, until: float) -> None:
        """Read the next datagram; wait for it if nothing has come."""
        while True:
            try:
                data, extra, _, _ = self._socket.recvmsg(_RECEIVE_BYTES, _FILES)
            except BlockingIOError:
                self._readable.poll(max(1, int(seconds_left(until) * 1000)))
                continue
            except ConnectionResetError:  # said once, where the other rank went with words of ours unread; its own last ones are still here
                continue
            except OSError as error:
                raise PeerEnded(error.strerror or "its socket is gone") from None
            if not data:
                raise PeerEnded("it closed its end")
            self._keep(data, extra)
            return

    def _keep(self, data: bytes, extra: list[tuple[int, int, bytes]]) -> None:
        kind, edge, slot, number, length = _WORD.unpack_from(data)
        for _, _, files in extra:
            self._theirs[number] = map_received(number, array.array("i", files)[0])
        self._arrived.setdefault((edge, slot), deque()).append((kind, number, data[_WORD.size:], length))

    def _tell(self, data: bytes, handle: int | None) -> None:
        """Put a datagram on the socket; a thread does it later if the socket is full."""
        with self._calm:
            if self._gone:
                raise PeerEnded(self._gone)
            if not self._late and self._put((data, handle)):
                return
            self._late.append((data, handle))
            if self._hands is None:
                self._hands = threading.Thread(target=self._hand_over, name="sparkring-datagrams", daemon=True)
                self._hands.start()

    def _put(self, datagram: Datagram) -> bool:
        """Whether the socket took it."""
        data, handle = datagram
        files = [] if handle is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handle]).tobytes())]
        try:
            self._socket.sendmsg([data], files)
        except BlockingIOError:
            return False
        except OSError as error:
            self._gone = error.strerror or "its socket is gone"
            raise PeerEnded(self._gone) from None
        _drop(handle)
        return True

    def _hand_over(self) -> None:
        """Put what is late on the socket as it empties; ends when nothing is."""
        while True:
            if not self._gone:
                self._writable.poll(int(_HAND_OVER_S * 1000))
            with self._calm:
                with suppress(PeerEnded):
                    while self._late and not self._gone and self._put(self._late[0]):
                        self._late.popleft()
                if not self._late or self._gone:
                    self._hands = None
                    self._calm.notify_all()
                    return


def _drop(handle: int | None) -> None:
    """Close a buffer's file here: the other rank has it, or will never take it."""
    if handle is not None:
        os.close(handle)


def open_memory_links(communicator: Communicator, edges: Sequence[Edge]) -> dict[int, MemoryLink] | None:
    """Connect this rank with those of its host that it shares an edge with. Every rank of the ring calls this.

    Args:
        communicator: The joined ring.
        edges: Edges within hosts, of all ranks.
    Returns:
        The links by rank; None on all ranks if some cannot reach each other (no /dev/shm, or a container that hides it).
    """
    context = communicator.context
    _allow_files()
    mine = [edge for edge in edges if context.rank in edge[:2]]
    peers = sorted({rank for edge in mine for rank in edge[:2]} - {context.rank})
    path = socket_path(context.token, context.rank)
    sockets: dict[int, socket.socket | None] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            if not communicator.agree(mine=_listening(listener, path, context.size), name="links.listen"):
                return None
            sockets.update({peer: _connected(socket_path(context.token, peer), context.rank) for peer in peers if peer < context.rank})
            if communicator.agree(mine=None not in sockets.values(), name="links.connect"):
                listener.settimeout(context.deadline_s)
                sockets.update(_accepted(listener) for peer in peers if peer > context.rank)
        finally:
            path.unlink(missing_ok=True)
    complete = sorted(peer for peer, connected in sockets.items() if connected is not None) == peers
    if not communicator.agree(mine=complete, name="links.accept"):
        for connected in sockets.values():
            if connected is not None:
                connected.close()
        return None
    return {peer: MemoryLink(connected, [edge for edge in mine if peer in edge[:2]])
            for peer, connected in sockets.items() if connected is not None}


def _allow_files() -> None:
    """Take as many open files as this process may have: each buffer's map keeps one in both ranks, and 1024 is a usual limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # no limit at all is more than the kernel gives
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listening(listener: socket.socket, path: Path, most: int) -> bool:
    """Listen at ``path``, where only this user may connect."""
    try:
        listener.bind(str(path))
        path.chmod(0o600)  # before anybody can connect
        listener.listen(most)
    except OSError:
        return False
    return True


def _connected(path: Path, rank: int) -> socket.socket | None:
    """A socket to the rank that listens at ``path``, which is told who we are."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connected.connect(str(path))
        connected.sendall(struct.pack("<I", rank))
    except OSError:
        connected.close()
        return None
    return connected


def _accepted(listener: socket.socket) -> tuple[int, socket.socket | None]:
    """The next rank that has connected; none if it is another user's process."""
    connected, _ = listener.accept()
    connected.settimeout(listener.gettimeout())
    _, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        connected.close()
        return -1, None
    return struct.unpack("<I", connected.recv(4))[0], connected
