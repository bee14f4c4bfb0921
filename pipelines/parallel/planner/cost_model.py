"""What the planner knows of a model and of machines: seconds as lines over rows or bytes, bytes by block. Plain data.

    seconds of a pass      = alpha + beta x rows          a block, fitted at two sizes of micro-batch; and alpha once more a chunk
    seconds of a hop       = alpha + beta x bytes         a transport, inside a host or between hosts; some of it either rank's own time
    seconds of a sum       = 2 (n - 1) alpha + 2 (n - 1) / n x bytes x beta        a ring of n, where n itself was not measured

Source of the last: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH", section 4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple


class Line(NamedTuple):
    """Seconds that rise evenly with an amount."""

    alpha_s: float = 0.0
    """Seconds at no amount at all."""
    beta_s: float = 0.0
    """Seconds more for each row or byte."""

    def at(self, amount: float) -> float:
        """Seconds for an amount."""
        return self.alpha_s + self.beta_s * amount

    def half(self) -> Line:
        """Half as many."""
        return Line(self.alpha_s / 2, self.beta_s / 2)


class Handover(NamedTuple):
    """One message: whose time it takes."""

    send_s: float = 0.0
    """Of the sender, which can do nothing else meanwhile: copying, telling."""
    flight_s: float = 0.0
    """Of nobody: from when it is sent until it can be received."""
    receive_s: float = 0.0
    """Of the receiver: copying."""

    @property
    def seconds(self) -> float:
        """From the start of the send until the receiver has it."""
        return self.send_s + self.flight_s + self.receive_s


class Hop(NamedTuple):
    """Seconds of a message by bytes: all of them, and what of them is either rank's own time."""

    whole: Line = Line()
    send: Line = Line()
    receive: Line = Line()

    def at(self, num_bytes: float) -> Handover:
        """A message of so many bytes."""
        send_s, receive_s = self.send.at(num_bytes), self.receive.at(num_bytes)
        return Handover(send_s, max(0.0, self.whole.at(num_bytes) - send_s - receive_s), receive_s)


@dataclass(frozen=True, kw_only=True)
class BlockProfile:
    """One block of a model; rows are those of a micro-batch."""

    name: str
    forward: Line
    """Seconds by rows."""
    backward: Line
    """Seconds by rows, of both gradients together."""
    halves: tuple[Line, Line] | None = None
    """Seconds by rows of the gradient of the input alone, and of those of the weights alone; None: half of ``backward`` each."""
    update_s: float = 0.0
    """The optimizer's step over its parameters."""
    parameter_bytes: float = 0.0
    """Of the parameters that no other block has."""
    shared_bytes: Mapping[str, float] = field(default_factory=dict)
    """Of its tied parts, by name."""
    activation_bytes: float = 0.0
    """A row: what the forward pass keeps for the backward pass."""
    border_bytes: float = 0.0
    """A row: what crosses to the next block, and as a gradient back."""


class PassSeconds(NamedTuple):
    """Seconds of the four kinds of passes."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    input_s: float = 0.0
    weight_s: float = 0.0


NO_SECONDS = PassSeconds()


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """A model as a sequence of blocks, and what training it takes beside their passes."""

    blocks: tuple[BlockProfile, ...]
    optimizer_copies: float = 0.0
    """Bytes that the optimizer keeps for each byte of parameters: momentum 1, Adam 2."""
    executor: PassSeconds = NO_SECONDS
    """What the executor of stages takes for a pass of a chunk, beside its blocks."""
    step_s: float = 0.0
    """Of a step, beside passes, messages, sums and the optimizer: rows, the loss over all ranks, records."""
    shards: Mapping[int, tuple[BlockProfile, ...]] = field(default_factory=dict)
    """The same blocks as one of so many shards computes them, with the sums inside them; empty where they cannot be dealt to shards."""

    def of_shards(self, count: int) -> ModelProfile:
        """What one of ``count`` shards holds and computes."""
        return self if count == 1 else replace(self, blocks=self.shards[count])

    @property
    def parameter_bytes(self) -> float:
        """Of the whole model, tied parts once."""
        return self.bytes_of(0, len(self.blocks))

    def bytes_of(self, first: int, last: int) -> float:
        """Parameters of a run of blocks ``first`` to ``last`` - 1; it holds a tied part once."""
        own = self.blocks[first:last]
        shared = {part: size for block in own for part, size in block.shared_bytes.items()}
        return sum(block.parameter_bytes for block in own) + sum(shared.values())


@dataclass(frozen=True, kw_only=True)
class SumCost:
    """What summing a buffer over a group of ranks takes."""

    step: Line = field(default_factory=Line)
    """One of the 2 (n - 1) steps of a ring: seconds of latency, and seconds a byte of what passes one link."""
    measured: Mapping[int, Line] = field(default_factory=dict)
    """Seconds by bytes, for the sizes of group that were measured."""

    def at(self, group: int, num_bytes: float) -> float:
        """Seconds for a group of so many members."""
        if group < 2:
            return 0.0
        if group in self.measured:
            return self.measured[group].at(num_bytes)
        return 2 * (group - 1) * (self.step.alpha_s + self.step.beta_s * num_bytes / group)


@dataclass(frozen=True, kw_only=True)
class Links:
    """What joins ranks, inside a host and between hosts."""

    sum_local: SumCost = SumCost()
    sum_between: SumCost = SumCost()
    by_host: bool = True
    """Sums inside hosts first, then over one rank a host; else one ring over all ranks, as fast as its slowest link."""
    overlaps: bool = False
    """Whether sums run while the backward pass goes on."""
    bucket_bytes: float = 25e6
    """Gradients that are summed together."""
    hop_local: Mapping[str, Hop] = field(default_factory=dict)
    """Of each transport, between ranks of one host."""
    hop_between: Mapping[str, Hop] = field(default_factory=dict)

    def sum_s(self, hosts: Sequence[int], num_bytes: float, *, at_once: int = 1) -> float:
        """Seconds of a sum over ranks on these hosts, one number a rank; so many such sums share the hosts' links."""
        num_hosts = len(set(hosts))
        if not self.by_host:
            return self.sum_local.at(len(hosts), num_bytes) if num_hosts == 1 else self.sum_between.at(len(hosts), at_once * num_bytes)
        most = max(hosts.count(host) for host in set(hosts))
        return self.sum_local.at(most, num_bytes) + self.sum_between.at(num_hosts, at_once * num_bytes)

    def fastest(self, num_bytes: float, *, between: int) -> str:
        """The transport that takes the least time for messages of this size; ``between`` as of ``handover``."""
        hops = self.hop_between if between else self.hop_local
        return min(hops, key=lambda name: self.handover(name, num_bytes, between=between).seconds, default="sidecar")

    def handover(self, transport: str, num_bytes: float, *, between: int) -> Handover:
        """A message of this size by one transport; for nothing where it was not measured.

        Args:
            transport: Its name.
            num_bytes: Of the message.
            between: How many such messages share a link between hosts; 0: it stays on its host.
        """
        hop = (self.hop_between if between else self.hop_local).get(transport, Hop())
        alone = hop.at(num_bytes)
        return alone if between < 2 else alone._replace(flight_s=max(alone.flight_s, hop.at(between * num_bytes).flight_s))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Machines of one kind."""

    links: Links = Links()
    ranks_per_host: int = 1
    """At most."""
    placed: tuple[int, ...] = ()
    """Host of each rank that there is; empty: host after host filled up."""
    memory_bytes: float = math.inf
    """That one rank may take."""
    process_bytes: float = 0.0
    """That a rank takes before it holds any of a model."""
    cores_per_host: float = math.inf
    """Ranks of a host that compute at full speed; more of them share it."""

    def hosts(self, num_ranks: int) -> tuple[int, ...]:
        """Host of each of the first ``num_ranks`` ranks."""
        return self.placed[:num_ranks] if self.placed else tuple(rank // self.ranks_per_host for rank in range(num_ranks))

    def keeps_together(self, count: int) -> bool:
        """Whether every ``count`` ranks in a row share a host."""
        counts = Counter(self.placed).values() if self.placed else [self.ranks_per_host]
        return all(ranks % count == 0 for ranks in counts)

    def slowdown(self, num_ranks: int) -> float:
        """How much longer ranks compute because they share cores."""
        return max(1.0, min(num_ranks, self.ranks_per_host) / self.cores_per_host)


def chunk_blocks(model: ModelProfile, bounds: Sequence[int]) -> list[tuple[BlockProfile, ...]]:
    """The blocks of each chunk."""
    return [model.blocks[first:last] for first, last in pairwise(bounds)]
