"""One TCP connection between two ranks: messages out of tensors' memory and into it, as much at a time as passes without waiting.

    message    frame | header, or for a refusal two | tensor 0 | tensor 1 | ...         every message brings its shapes

A large tensor goes to the socket straight from its memory, and from the socket straight into its own. What is small is read ahead
into a buffer, so a small message takes one system call. Nothing is unpickled, and nothing here waits: see pump.py.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from sparkring.errors import RingError
from sparkring.pipelines.parallel.transports.payload import as_sent, empty, memory_of
from sparkring.pipelines.parallel.transports.signals import PeerEnded
from sparkring.pipelines.parallel.transports.tensor_specs import HEADER_BYTES, TensorSpecs, pack_header, unpack_header

PAYLOAD, REFUSAL = 0, 1
READ_AHEAD_BYTES = 1 << 14
"""What is at least as large is received where it belongs; for what is smaller a copy is cheaper than a call."""
AT_ONCE_BYTES = 1 << 19
"""Of a large tensor so much is waited for before a thread wakes: woken for each packet, it spends a third of the time on waking."""
MOST_PIECES = 1000
"""Pieces of memory that one system call takes; Linux allows 1024."""
_FRAME = struct.Struct("<BxHIII")  # kind, number of the edge, micro-batch, bytes of the first header and of the second

MessageKey = tuple[int, int]
"""Number of the edge, and micro-batch."""


@dataclass(frozen=True)
class Arrived:
    """A whole message, or the refusal of one."""

    specs: TensorSpecs
    tensors: list[Tensor]
    refused: TensorSpecs | None = None
    """What was found in place of ``specs``, if the sender refused the message."""


class _Departing:
    """A message of which some bytes are not in the socket yet. It keeps its tensors alive."""

    def __init__(self, key: MessageKey, header: bytes, tensors: Sequence[Tensor]) -> None:
        self.key = key
        self._tensors = [as_sent(tensor) for tensor in tensors]
        self._pieces = [memoryview(header), *(memory_of(tensor) for tensor in self._tensors if tensor.nbytes)]

    def send(self, to: socket.socket) -> bool:
        """Hand to the socket what it takes; whether it took all that it was shown."""
        shown = self._pieces[:MOST_PIECES]
        sent = to.sendmsg(shown)
        whole = 0
        while whole < len(shown) and sent >= len(shown[whole]):
            sent -= len(shown[whole])
            whole += 1
        del self._pieces[:whole]
        if sent:
            self._pieces[0] = self._pieces[0][sent:]
        return whole == len(shown)

    @property
    def done(self) -> bool:
        """Whether the socket has all of it."""
        return not self._pieces


class Stream:
    """The connection to one rank. One thread at a time may use it."""

    def __init__(self, peer: socket.socket, *, pinned: bool = False) -> None:
        """Take the connected socket; messages are received into ``pinned`` memory, from where a GPU takes them, or into other memory."""
        peer.settimeout(0)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._pinned = peer, pinned
        self._departing: deque[_Departing] = deque()
        self._ahead = memoryview(bytearray(READ_AHEAD_BYTES))
        self._parser = self._parse()
        self._place = next(self._parser)
        """The memory that the next bytes belong in; never empty."""
        self.arrived: dict[MessageKey, deque[Arrived]] = {}
        self._expected: dict[MessageKey, tuple[TensorSpecs, list[Tensor]]] = {}
        self._ready_at = 1
        self.end: Exception | None = None
        """What ended the connection."""

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._socket.fileno()

    @property
    def is_busy(self) -> bool:
        """Whether bytes should move while the rank does other things."""
        return self.end is None and bool(self._departing or self._expected)

    @property
    def first_departing(self) -> MessageKey | None:
        """The oldest message of which some bytes are not in the socket."""
        return self._departing[0].key if self._departing else None

    def send(self, key: MessageKey, specs: TensorSpecs, tensors: Sequence[Tensor], *, refused: TensorSpecs | None = None) -> None:
        """Send a message, behind those that are not sent yet; or the refusal of one of ``specs``.

        Raises:
            PipelineShapeError: the tensors cannot be sent.
        """
        first, second = pack_header(specs), b"" if refused is None else pack_header(refused)
        kind = PAYLOAD if refused is None else REFUSAL
        self._departing.append(_Departing(key, _FRAME.pack(kind, *key, len(first), len(second)) + first + second, tensors))
        if len(self._departing) == 1:
            self.write()

    def expect(self, key: MessageKey, specs: TensorSpecs) -> None:
        """Have a message received while the rank does other things, unless it is here.

        Its memory is taken now: glibc keeps the memory of each thread apart, and new memory costs as much as the message.
        """
        if key not in self._expected and not self.arrived.get(key):
            self._expected[key] = specs, empty(specs, pinned=self._pinned)

    def be_ready_at(self, least: int) -> None:
        """Have the socket wake who waits for it once so many bytes have come, of a large tensor up to ``AT_ONCE_BYTES``; or the end.

        Linux itself asks for no more than its buffer can hold.
        """
        left = len(self._place)
        num_bytes = max(least, min(left, AT_ONCE_BYTES)) if left >= READ_AHEAD_BYTES else least
        if num_bytes != self._ready_at and self.end is None:
            self._ready_at = num_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)

    def write(self) -> None:
        """Send what the socket takes."""
        try:
            while self._departing and self.end is None and self._departing[0].send(self._socket):
                if self._departing[0].done:
                    self._departing.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            self._finish(error)

    def read(self) -> bool:
        """Receive what has come, at most one piece of it; whether there may be more."""
        straight = len(self._place) >= READ_AHEAD_BYTES
        try:
            count = self._socket.recv_into(self._place if straight else self._ahead)
            if not count:
                self.end = PeerEnded("it closed its end")
            elif straight:
                self._advance(count)
            else:
                self._take(self._ahead[:count])
        except BlockingIOError:
            return False
        except OSError as error:
            self.end = PeerEnded(error.strerror or "its socket is closed")
        except (RingError, RuntimeError) as error:  # no message of ours, or no memory for it: raised to who waits, in whichever thread
            self.end = error
        return self.end is None

    def acknowledged(self) -> bool:
        """Whether the other host has received all that was sent: then it can read it even if this rank ends."""
        (left,) = struct.unpack("i", fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4)))
        return not left

    def close(self) -> None:
        """Close the socket and let go of all memory."""
        self.end = self.end or PeerEnded("its socket is closed")
        self._socket.close()
        self._departing.clear()
        self.arrived.clear()
        self._expected.clear()

    def _finish(self, error: OSError) -> None:
        """After a failed write, read what the other rank has said before it ended."""
        while self.read():
            pass
        self.end = self.end or PeerEnded(error.strerror or "its socket is closed")

    def _take(self, data: memoryview) -> None:
        while data:
            part = min(len(data), len(self._place))
            self._place[:part] = data[:part]
            data = data[part:]
            self._advance(part)

    def _advance(self, count: int) -> None:
        self._place = self._place[count:] if count < len(self._place) else next(self._parser)

    def _parse(self) -> Iterator[memoryview]:
        """Yield the places that the next bytes belong in; each is full before the next one is asked for."""
        frame = memoryview(bytearray(_FRAME.size))
        while True:
            yield frame
            kind, edge, micro_batch, first, second = _FRAME.unpack(frame)
            if not 0 < first <= HEADER_BYTES or second > HEADER_BYTES:
                raise RingError("a message between ranks does not begin as one of ours; all ranks must run the same version of sparkring.")
            headers = memoryview(bytearray(first + second))
            yield headers
            specs = unpack_header(bytes(headers[:first]))
            if kind == REFUSAL:
                self._keep((edge, micro_batch), Arrived(specs, [], refused=unpack_header(bytes(headers[first:]))))
                continue
            foreseen, tensors = self._expected.get((edge, micro_batch), (None, []))
            if foreseen != specs:
                tensors = empty(specs, pinned=self._pinned)
            for tensor in tensors:
                if tensor.nbytes:
                    yield memory_of(tensor)
            self._keep((edge, micro_batch), Arrived(specs, tensors))

    def _keep(self, key: MessageKey, message: Arrived) -> None:
        self.arrived.setdefault(key, deque()).append(message)
        self._expected.pop(key, None)
