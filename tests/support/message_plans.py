"""Random conversations that cannot deadlock, for fuzzing transports: the same plan on all ranks, drawn from a seed.

Each message gets a moment at which it is sent and a later one at which it is received; each rank acts in the order of its moments.
So a receive waits only for what was to be sent before, while ranks reach their moments whenever they do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.linked import LinkedTransport
from sparkring.pipelines.parallel.transports.payload import flat_bytes
from sparkring.pipelines.parallel.transports.tensor_specs import DTYPES, TensorSpecs

MICRO_BATCHES = 8


@dataclass(frozen=True)
class Message:
    """One message of a plan."""

    edge: Edge
    micro_batch: int
    specs: TensorSpecs
    seed: int

    def tensors(self) -> list[Tensor]:
        """What is sent: bits that follow from the seed, in every second case not contiguous."""
        made = []
        for place, (dtype, shape) in enumerate(self.specs.parts):
            generator = torch.Generator().manual_seed(self.seed + place)
            bits = torch.randint(0, 2 if dtype is torch.bool else 256, (math.prod(shape) * dtype.itemsize,), dtype=torch.uint8,
                                 generator=generator)
            tensor = bits.view(dtype).reshape(shape)
            made.append(tensor.transpose(0, 1).contiguous().transpose(0, 1) if self.seed % 2 and len(shape) > 1 else tensor)
        return made

    def is_in(self, arrived: Sequence[Tensor]) -> bool:
        """Whether what arrived is what was sent, bit by bit."""
        return TensorSpecs.of(arrived) == self.specs and all(
            torch.equal(flat_bytes(one), flat_bytes(other)) for one, other in zip(self.tensors(), arrived, strict=True))


def plan_round(seed: int, edges: Sequence[Edge], *, dynamic_shapes: bool) -> list[tuple[float, str, Message]]:
    """One round: on each edge each micro-batch is sent once or not at all. (moment, what, message), in the order of moments."""
    draw = random.Random(seed)
    actions = []
    for edge in edges:
        fixed = _layout(random.Random(f"{edge}"))
        for micro_batch in draw.sample(range(MICRO_BATCHES), draw.randint(1, MICRO_BATCHES)):
            message = Message(edge, micro_batch, _layout(draw) if dynamic_shapes else fixed, draw.randrange(2**40))
            sent = draw.random()
            received = sent + draw.random() ** 3
            actions += [(sent, "send", message), (received, "receive", message)]
            if draw.random() < 0.5:
                actions.append((draw.uniform(0, received), "expect", message))
    return sorted(actions, key=lambda action: action[0])


def act(transport: LinkedTransport, rank: int, actions: Sequence[tuple[float, str, Message]]) -> tuple[int, int]:
    """This rank's part of a round; (messages received, of those right)."""
    received = right = 0
    for _, what, message in actions:
        if what == "send" and message.edge.source == rank:
            transport.send(message.edge, message.micro_batch, message.tensors())
        elif what == "expect" and message.edge.target == rank:
            transport.expect(message.edge, message.micro_batch)
        elif what == "receive" and message.edge.target == rank:
            received += 1
            right += message.is_in(transport.receive(message.edge, message.micro_batch))
    return received, right


def _layout(draw: random.Random) -> TensorSpecs:
    parts = []
    for _ in range(draw.choice([0, 1, 1, 1, 2, 5])):
        shape = tuple(draw.choice([0, 1, 2, 3, 7, 16]) for _ in range(draw.randint(0, 4)))
        if draw.random() < 0.2:
            shape = (draw.choice([1000, 65_536, 300_001]),)
        parts.append((draw.choice(DTYPES), shape))
    return TensorSpecs(tuple(parts))
