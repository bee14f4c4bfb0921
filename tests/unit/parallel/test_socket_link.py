"""Messages through a TCP connection: whole whatever is cut, on their way while their rank does other things, and over with it."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkring.errors import PipelineShapeError, RingError
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.pump import LARGE_BYTES, Pump
from sparkring.pipelines.parallel.transports.signals import DrainFailed, LinkTimeout, MessageRefused, PeerEnded
from sparkring.pipelines.parallel.transports.sockets import SocketLink
from sparkring.pipelines.parallel.transports.stream import AT_ONCE_BYTES, MOST_PIECES, READ_AHEAD_BYTES, Stream
from sparkring.pipelines.parallel.transports.tensor_specs import TensorSpecs
from tests.support import seams
from tests.support.tcp import connected_pair
from tests.support.training import await_condition

FORTH, BACK = Edge(0, 1, "f1"), Edge(1, 0, "b1")
EDGES = [FORTH, BACK]
LITTLE = 4096
"""Of a socket's buffer; Linux doubles it."""
LARGE = torch.arange(64 * LITTLE, dtype=torch.float32)
SMALL = torch.arange(10.0)
assert SMALL.nbytes < LARGE_BYTES < LARGE.nbytes


def _link(end: socket.socket) -> SocketLink:
    stream = Stream(end)
    return SocketLink(stream, Pump([stream]), EDGES)


@contextmanager
def _links(buffer_bytes: int | None = LITTLE) -> Iterator[tuple[SocketLink, SocketLink]]:
    """Those of ranks 0 and 1."""
    one, other = map(_link, connected_pair(buffer_bytes=buffer_bytes))
    try:
        yield one, other
    finally:
        one.close()
        other.close()


def _soon() -> float:
    return time.monotonic() + 20


def _send(link: SocketLink, tensors: list[Tensor], micro_batch: int = 0, edge: Edge = FORTH) -> None:
    link.send(edge, micro_batch, TensorSpecs.of(tensors), tensors, rows=1)


def _receive(link: SocketLink, micro_batch: int = 0, edge: Edge = FORTH, until: float | None = None) -> list[Tensor]:
    return link.receive(edge, micro_batch, until or _soon(), rows=1)[1]


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(
        (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(one, other)
        for one, other in zip(found, expected, strict=True))


MESSAGES = {
    "no tensors": [], "a number": [torch.tensor(7)], "no values": [torch.empty(0, 3), torch.tensor(1.5), torch.empty(2, 0)],
    "just what is read ahead": [torch.ones(READ_AHEAD_BYTES, dtype=torch.uint8)],
    "a byte more and one less": [torch.ones(READ_AHEAD_BYTES + 1, dtype=torch.bool), torch.ones(READ_AHEAD_BYTES - 1, dtype=torch.int8)],
    "not contiguous": [torch.arange(60.0).view(6, 10).t(), torch.arange(8)[::2]], "large": [LARGE, SMALL.to(torch.bfloat16), LARGE],
    "conjugate": [torch.complex(SMALL, SMALL).conj()], "zeros without memory": [torch._efficientzerotensor((3, 2))],
    "many": [torch.tensor(number) for number in range(380)]}


def test_every_kind_of_message_arrives_whole_through_a_socket_that_holds_little() -> None:
    with _links() as (sender, receiver):
        for place, tensors in enumerate(MESSAGES.values()):
            _send(sender, tensors, place)
        for place, (name, tensors) in reversed(list(enumerate(MESSAGES.items()))):
            assert _equal(_receive(receiver, place), tensors), name


def test_a_message_may_have_more_tensors_than_a_call_takes() -> None:
    tensors = [torch.tensor(number, dtype=torch.int16) for number in range(400)]
    with _links() as (sender, receiver):
        for micro_batch in range(3 * MOST_PIECES // len(tensors)):
            _send(sender, tensors, micro_batch)
            assert _equal(_receive(receiver, micro_batch), tensors)


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_may_be_cut_anywhere(seed: int) -> None:
    here, wire = connected_pair()
    there, out = connected_pair()
    with here, wire, there, out:
        sender = Stream(here)
        for place, tensors in enumerate(MESSAGES.values()):
            sender.send((0, place), TensorSpecs.of(tensors), tensors)
        receiver, rng = Stream(there), random.Random(seed)
        wire.setblocking(False)
        while sender.first_departing is not None or not sender.acknowledged() or _waiting(wire):
            sender.write()
            try:
                data = wire.recv(rng.choice([1, 7, 100, READ_AHEAD_BYTES, 1 << 20]))
            except BlockingIOError:
                continue
            out.sendall(data)
            while receiver.read():
                pass
        assert {key[1] for key, queue in receiver.arrived.items() if queue} == set(range(len(MESSAGES)))
        for place, tensors in enumerate(MESSAGES.values()):
            assert _equal(receiver.arrived[0, place].popleft().tensors, tensors)


def _waiting(end: socket.socket) -> bool:
    try:
        return bool(end.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_messages_of_one_number_come_in_the_order_in_which_they_were_sent() -> None:
    with _links() as (sender, receiver):
        for value in range(5):
            _send(sender, [torch.tensor(value)])
        assert [int(_receive(receiver)[0]) for _ in range(5)] == list(range(5))


def test_large_messages_may_be_sent_in_both_directions_at_once_before_either_is_received() -> None:
    with _links() as (one, other):
        _send(one, [LARGE])
        _send(other, [-LARGE], edge=BACK)
        assert torch.equal(_receive(other)[0], LARGE)
        assert torch.equal(_receive(one, edge=BACK)[0], -LARGE)


def test_the_rest_of_a_message_follows_while_its_sender_does_other_things() -> None:
    with _links() as (sender, receiver):
        _send(sender, [LARGE])
        assert sender._stream.first_departing == (sender._numbers[FORTH], 0), "the socket holds little"
        assert torch.equal(_receive(receiver)[0], LARGE)
        sender.drain(_soon())


def _teach(sender: SocketLink, receiver: SocketLink) -> None:
    """How large messages of this edge are."""
    _send(sender, [LARGE])
    _receive(receiver)
    sender.drain(_soon())


@pytest.mark.parametrize("announced", [pytest.param(True, id="announced"), pytest.param(False, id="the control: not announced")])
def test_a_large_message_that_was_announced_comes_while_its_receiver_does_other_things(announced: bool) -> None:
    with _links() as (sender, receiver):
        _teach(sender, receiver)
        if announced:
            receiver.expect(FORTH, 1, rows=1)
        _send(sender, [LARGE], 1)
        if announced:
            sender.drain(_soon())
        else:
            with pytest.raises(DrainFailed):
                sender.drain(time.monotonic() + 0.5)
        assert torch.equal(_receive(receiver, 1)[0], LARGE)


def test_a_message_of_which_a_part_is_here_may_still_be_announced() -> None:
    with _links() as (sender, receiver):
        _teach(sender, receiver)
        _send(sender, [LARGE], 1)
        with pytest.raises(LinkTimeout):
            _receive(receiver, 2, until=time.monotonic() + 0.001)
        receiver.expect(FORTH, 1, rows=1)
        sender.drain(_soon())
        assert torch.equal(_receive(receiver, 1)[0], LARGE)
        assert not receiver._stream.is_busy


class _Counting(Stream):
    """Counts its reads."""

    reads = 0

    def read(self) -> bool:
        self.reads += 1
        return super().read()


def _reads_of_a_large_message(*, piece_bytes: int) -> int:
    """Those of a receiver that looks after each piece."""
    here, wire = connected_pair()
    there, out = connected_pair()
    sender, receiver, message = Stream(here), _Counting(there), torch.arange(AT_ONCE_BYTES, dtype=torch.float32)
    pump = Pump([receiver])
    wire.setblocking(False)
    with wire, out:
        sender.send((0, 0), TensorSpecs.of([message]), [message])
        while not receiver.arrived:
            sender.write()
            with suppress(BlockingIOError):
                out.sendall(wire.recv(piece_bytes))
            pump._move(0.0)
        assert torch.equal(receiver.arrived[0, 0].popleft().tensors[0], message)
    sender.close()
    pump.close()
    return receiver.reads


def test_who_waits_for_a_large_message_wakes_for_a_large_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _reads_of_a_large_message(piece_bytes=1 << 15) <= 8, "2 MiB"
    monkeypatch.setattr(seams.STREAM_AT_ONCE_BYTES, 1)
    assert _reads_of_a_large_message(piece_bytes=1 << 15) >= 60, "the control"


def test_small_messages_wake_no_other_thread() -> None:
    with _links(None) as (one, other):
        for micro_batch in range(20):
            other.expect(FORTH, micro_batch, rows=1)
            _send(one, [SMALL], micro_batch)
            _send(other, _receive(other, micro_batch), micro_batch, BACK)
            assert torch.equal(_receive(one, micro_batch, BACK)[0], SMALL)
        assert one._pump._helper is None
        assert other._pump._helper is None
        _teach(one, other)
        other.expect(FORTH, 1, rows=1)
        assert other._pump._helper is not None, "the control"


def test_a_small_message_that_came_while_a_large_one_was_announced_is_there_at_once() -> None:
    with _links() as (sender, receiver):
        _teach(sender, receiver)
        for micro_batch in range(2, 50):
            receiver.expect(FORTH, 1, rows=1)
            _send(sender, [SMALL], micro_batch)
            await_condition(sender._stream.acknowledged, "the message in the other rank's socket")
            assert torch.equal(_receive(receiver, micro_batch)[0], SMALL)
        _send(sender, [LARGE], 1)
        assert torch.equal(_receive(receiver, 1)[0], LARGE)


def test_a_wait_ends_at_its_deadline_and_the_message_may_come_later() -> None:
    with _links() as (sender, receiver):
        with pytest.raises(LinkTimeout):
            _receive(receiver, until=time.monotonic() + 0.05)
        _send(sender, [SMALL])
        assert torch.equal(_receive(receiver)[0], SMALL)


def test_a_message_that_is_not_taken_is_named_by_the_drain() -> None:
    with _links() as (sender, _):
        _send(sender, [LARGE], 3)
        with pytest.raises(DrainFailed) as failed:
            sender.drain(time.monotonic() + 0.05)
    assert (failed.value.edge, failed.value.micro_batch, failed.value.ended) == (FORTH, 3, None)


def test_the_end_of_the_other_rank_ends_all_waits_after_the_messages_that_came_before() -> None:
    with _links() as (sender, receiver):
        _send(sender, [SMALL])
        sender.close()
        assert torch.equal(_receive(receiver)[0], SMALL)
        with pytest.raises(PeerEnded, match="it closed its end"):
            _receive(receiver, 1)
        with pytest.raises(PeerEnded):
            _send(receiver, [SMALL], edge=BACK)


def test_a_message_that_its_receiver_can_no_longer_take_is_named_by_the_drain() -> None:
    with _links() as (sender, receiver):
        _send(sender, [LARGE], 2)
        receiver.close()
        with pytest.raises(DrainFailed) as failed:
            sender.drain(_soon())
    assert (failed.value.edge, failed.value.micro_batch) == (FORTH, 2)
    assert isinstance(failed.value.ended, PeerEnded)


def test_a_refusal_arrives_though_its_sender_ends_with_messages_unread() -> None:
    agreed, found = TensorSpecs.of([SMALL]), TensorSpecs.of([LARGE])
    with _links() as (sender, receiver):
        _send(receiver, [LARGE], edge=BACK)  # which nobody reads, so the connection ends in a reset
        sender.refuse(FORTH, 4, agreed=agreed, found=found, until=_soon())
        sender.close()
        with pytest.raises(MessageRefused) as refused:
            _receive(receiver, 4)
    assert (refused.value.micro_batch, refused.value.agreed, refused.value.found) == (4, agreed, found)


def test_who_sends_to_a_rank_that_has_refused_and_ended_gets_the_refusal() -> None:
    agreed, found = TensorSpecs.of([SMALL]), TensorSpecs.of([LARGE])
    with _links() as (sender, receiver):
        receiver.refuse(BACK, 5, agreed=agreed, found=found, until=_soon())
        receiver.close()
        with pytest.raises(MessageRefused) as refused:
            for micro_batch in range(1000):  # the first may still go: its answer says that the other rank has ended
                _send(sender, [SMALL], micro_batch)
                sender._stream.acknowledged()
    assert (refused.value.edge, refused.value.micro_batch) == (BACK, 5)


@pytest.mark.parametrize("data", [pytest.param(bytes(64), id="zeros"), pytest.param(b"GET / HTTP/1.1\r\n" * 8, id="a browser's")])
def test_what_is_no_message_is_an_error_for_the_one_that_waits(data: bytes) -> None:
    here, there = connected_pair()
    receiver = _link(there)
    with here:
        here.sendall(data)
        with pytest.raises(RingError, match="does not begin as one of ours"):
            _receive(receiver)
        receiver.close()


def test_what_cannot_be_sent_leaves_nothing_on_its_way() -> None:
    with _links() as (sender, receiver):
        with pytest.raises(PipelineShapeError, match="transports carry dense ones"):
            _send(sender, [torch.ones(2, 2).to_sparse()])
        _send(sender, [SMALL])
        assert torch.equal(_receive(receiver)[0], SMALL)


def test_a_tensor_that_came_while_inference_went_on_can_be_trained_with() -> None:
    with _links() as (sender, receiver):
        with torch.inference_mode():
            _send(sender, [SMALL])
            (received,) = _receive(receiver)
        assert not received.is_inference()


def test_nothing_is_left_of_a_closed_link() -> None:
    before, threads = _open_files(), threading.active_count()
    with _links() as (sender, receiver):
        _teach(sender, receiver)
        _send(sender, [LARGE])  # and some of it is on its way
        receiver.expect(FORTH, 0, rows=1)
        assert _open_files() > before
        assert threading.active_count() > threads
    assert (_open_files(), threading.active_count()) == (before, threads)
