"""How often a message's shapes travel: with each one where they are dynamic, else once for each number of rows."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import Tensor

from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.framed import HEADER, PAYLOAD, FramedLink, MessageKey
from sparkring.pipelines.parallel.transports.tensor_specs import TensorSpecs

EDGE = Edge(0, 1, "f1")


class Pipe:
    """A wire from a process to itself, which counts what passes."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self._held: dict[MessageKey, deque[Tensor]] = {}
        self._posted: set[MessageKey] = set()

    def send(self, key: MessageKey, data: Tensor) -> None:
        self.sent.append(key.part)
        self._held.setdefault(key, deque()).append(data)

    def post(self, key: MessageKey) -> None:
        self._posted.add(key)

    def wait(self, key: MessageKey, until: float) -> Tensor:
        self._posted.remove(key)
        return self._held[key].popleft()

    def drain(self, until: float) -> None:
        """Nothing is on its way."""

    def close(self) -> None:
        """Nothing to let go of."""


def _passed(link: FramedLink, micro_batch: int, rows: int) -> bool:
    tensors = [torch.randn(rows, 70)]
    link.send(EDGE, micro_batch, TensorSpecs.of(tensors), tensors, rows=rows)
    (received,) = link.receive(EDGE, micro_batch, 0.0, rows=rows)[1]
    return torch.equal(received, tensors[0])


@pytest.mark.parametrize(("dynamic", "headers"), [pytest.param(False, 2, id="static"), pytest.param(True, 6, id="dynamic")])
def test_shapes_travel_once_a_number_of_rows_or_with_every_message(dynamic: bool, headers: int) -> None:
    pipe = Pipe()
    link = FramedLink(pipe, token="ab" * 16, dynamic_shapes=dynamic)
    assert all(_passed(link, micro_batch, rows) for micro_batch, rows in enumerate([4, 3, 3, 4, 4, 3]))
    assert (pipe.sent.count(HEADER), pipe.sent.count(PAYLOAD)) == (headers, 6)


def test_two_kinds_may_be_announced_before_one_is_received_and_be_taken_in_any_order() -> None:
    pipe = Pipe()
    sender, receiver = (FramedLink(pipe, token="ab" * 16, dynamic_shapes=False) for _ in range(2))
    tensors = {micro_batch: [torch.full((rows, 70), float(micro_batch))] for micro_batch, rows in enumerate([4, 3, 4])}
    for micro_batch, values in tensors.items():
        sender.send(EDGE, micro_batch, TensorSpecs.of(values), values, rows=len(values[0]))
    for micro_batch in (2, 1, 0):
        receiver.expect(EDGE, micro_batch, rows=len(tensors[micro_batch][0]))
    for micro_batch in (1, 2, 0):
        _, received = receiver.receive(EDGE, micro_batch, 0.0, rows=len(tensors[micro_batch][0]))
        assert torch.equal(received[0], tensors[micro_batch][0])
