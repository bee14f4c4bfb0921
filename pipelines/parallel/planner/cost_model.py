"""The planner's model of a network and of machines: seconds as lines over rows or bytes, and bytes by block. Plain data.

    seconds of a pass      = alpha + beta x rows          per block, fitted at two sizes of micro-batch; plus the executor's, per chunk
    seconds of a hop       = alpha + beta x bytes         per transport, inside a host or between hosts; part of it occupies either rank
    seconds of a sum       = 2 (n - 1) alpha + 2 (n - 1) / n x bytes x beta        for a ring of n ranks, where n was not measured

Source of the last: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH", section 4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from sparkring.conf.schema import TransportName


class Line(NamedTuple):
    """Seconds as a linear function of an amount."""

    alpha_s: float = 0.0
    """Seconds at amount 0."""
    beta_s: float = 0.0
    """Seconds per row or byte."""

    def at(self, amount: float) -> float:
        """Seconds for an amount."""
        return self.alpha_s + self.beta_s * amount

    def half(self) -> Line:
        """A line of half the seconds."""
        return Line(self.alpha_s / 2, self.beta_s / 2)


class Handover(NamedTuple):
    """The seconds of one message, by who is busy."""

    send_s: float = 0.0
    """The sender is busy: it copies and announces the message."""
    flight_s: float = 0.0
    """Nobody is busy: the message travels."""
    receive_s: float = 0.0
    """The receiver is busy: it copies."""

    @property
    def seconds(self) -> float:
        """From the start of the send until the receiver has the message."""
        return self.send_s + self.flight_s + self.receive_s


class Hop(NamedTuple):
    """Seconds of a message by bytes: in all, and those in which the sender or the receiver is busy."""

    whole: Line = Line()
    send: Line = Line()
    receive: Line = Line()

    def at(self, num_bytes: float) -> Handover:
        """The seconds of a message of ``num_bytes``."""
        send_s, receive_s = self.send.at(num_bytes), self.receive.at(num_bytes)
        return Handover(send_s, max(0.0, self.whole.at(num_bytes) - send_s - receive_s), receive_s)


@dataclass(frozen=True, kw_only=True)
class BlockProfile:
    """One block of a model; rows are those of a micro-batch."""

    name: str
    forward: Line
    """Seconds by rows."""
    backward: Line
    """Seconds by rows of the whole backward pass."""
    halves: tuple[Line, Line] | None = None
    """Seconds by rows of the input's gradient and of the weights' gradients; None: half of ``backward`` each."""
    update_s: float = 0.0
    """Seconds of the optimizer's step for its parameters."""
    parameter_bytes: float = 0.0
    """Bytes of the parameters that no other block shares."""
    shared_bytes: Mapping[str, float] = field(default_factory=dict)
    """Bytes of its tied parts, by name."""
    activation_bytes: float = 0.0
    """Bytes per row that the forward pass keeps for the backward pass."""
    border_bytes: float = 0.0
    """Bytes per row that go to the next block, and come back as a gradient."""


class PassSeconds(NamedTuple):
    """Seconds of the four kinds of passes."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    input_s: float = 0.0
    weight_s: float = 0.0


NO_SECONDS = PassSeconds()


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """A model as a sequence of blocks, and the costs of training beside their passes."""

    blocks: tuple[BlockProfile, ...]
    optimizer_copies: float = 0.0
    """Bytes that the optimizer keeps per byte of parameters: e.g. 1 for momentum, 2 for Adam."""
    executor: PassSeconds = NO_SECONDS
    """The executor's own seconds for a pass of a chunk, beside the blocks."""
    step_s: float = 0.0
    """Seconds of a step beside passes, messages, sums and the optimizer: rows, the loss over all ranks, records."""
    shards: Mapping[int, tuple[BlockProfile, ...]] = field(default_factory=dict)
    """By number of shards, the same blocks as one shard computes them, sums included; empty if the model cannot be sharded."""

    def of_shards(self, count: int) -> ModelProfile:
        """The profile of one of ``count`` shards."""
        return self if count == 1 else replace(self, blocks=self.shards[count])

    @property
    def parameter_bytes(self) -> float:
        """Bytes of the whole model's parameters; tied parts count once."""
        return self.bytes_of(0, len(self.blocks))

    def bytes_of(self, first: int, last: int) -> float:
        """Bytes of the parameters of the blocks ``first`` to ``last`` - 1; tied parts count once."""
        own = self.blocks[first:last]
        shared = {part: size for block in own for part, size in block.shared_bytes.items()}
        return sum(block.parameter_bytes for block in own) + sum(shared.values())


@dataclass(frozen=True, kw_only=True)
class SumCost:
    """Seconds of summing a buffer over a group of ranks."""

    step: Line = field(default_factory=Line)
    """One of the 2 (n - 1) steps of a ring: its latency, and seconds per byte on one link."""
    measured: Mapping[int, Line] = field(default_factory=dict)
    """Seconds by bytes, by the size of each group that was measured."""

    def at(self, group: int, num_bytes: float) -> float:
        """Seconds of summing ``num_bytes`` over ``group`` ranks."""
        if group < 2:
            return 0.0
        if group in self.measured:
            return self.measured[group].at(num_bytes)
        return 2 * (group - 1) * (self.step.alpha_s + self.step.beta_s * num_bytes / group)


@dataclass(frozen=True, kw_only=True)
class LinkCosts:
    """The costs of sums and messages, inside a host and between hosts."""

    sum_local: SumCost = SumCost()
    sum_between: SumCost = SumCost()
    by_host: bool = True
    """Whether sums are made inside hosts first, then over one rank per host; else one ring joins all ranks, at its slowest link's pace."""
    overlaps: bool = False
    """Whether sums run during the backward pass."""
    bucket_bytes: float = 25e6
    """Bytes of gradients that are summed together."""
    hop_local: Mapping[TransportName, Hop] = field(default_factory=dict)
    """By transport, between ranks of one host."""
    hop_between: Mapping[TransportName, Hop] = field(default_factory=dict)

    def sum_s(self, hosts: Sequence[int], num_bytes: float, *, at_once: int = 1) -> float:
        """Seconds of a sum over ranks.

        Args:
            hosts: Host number of each rank.
            num_bytes: Bytes of the buffer.
            at_once: Number of such sums that share the hosts' links.
        """
        num_hosts = len(set(hosts))
        if not self.by_host:
            return self.sum_local.at(len(hosts), num_bytes) if num_hosts == 1 else self.sum_between.at(len(hosts), at_once * num_bytes)
        most = max(hosts.count(host) for host in set(hosts))
        return self.sum_local.at(most, num_bytes) + self.sum_between.at(num_hosts, at_once * num_bytes)

    def fastest(self, num_bytes: float, *, between: int) -> TransportName:
        """The fastest transport for messages of ``num_bytes``; ``between`` as in ``handover``."""
        hops = self.hop_between if between else self.hop_local
        return min(hops, key=lambda name: self.handover(name, num_bytes, between=between).seconds, default="sidecar")

    def handover(self, transport: TransportName, num_bytes: float, *, between: int) -> Handover:
        """The seconds of a message by one transport; none if it was not measured.

        Args:
            transport: Its name.
            num_bytes: Bytes of the message.
            between: Number of such messages that share a link between hosts; 0: the message stays on its host.
        """
        hop = (self.hop_between if between else self.hop_local).get(transport, Hop())
        alone = hop.at(num_bytes)
        return alone if between < 2 else alone._replace(flight_s=max(alone.flight_s, hop.at(between * num_bytes).flight_s))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Machines of one kind."""

    links: LinkCosts = LinkCosts()
    ranks_per_host: int = 1
    """Most ranks of a host."""
    placed: tuple[int, ...] = ()
    """Host of each existing rank; empty: hosts are filled one after the other."""
    memory_bytes: float = math.inf
    """Bytes that a rank may use."""
    process_bytes: float = 0.0
    """Bytes of a rank's process without any model."""
    cores_per_host: float = math.inf
    """Ranks of a host that compute at full speed; more ranks share the cores."""

    def hosts(self, num_ranks: int) -> tuple[int, ...]:
        """Host of each of the first ``num_ranks`` ranks."""
        return self.placed[:num_ranks] if self.placed else tuple(rank // self.ranks_per_host for rank in range(num_ranks))

    def keeps_together(self, count: int) -> bool:
        """Whether each group of ``count`` consecutive ranks lies on one host."""
        counts = Counter(self.placed).values() if self.placed else [self.ranks_per_host]
        return all(ranks % count == 0 for ranks in counts)

    def slowdown(self, num_ranks: int) -> float:
        """Factor by which ranks compute longer because they share cores."""
        return max(1.0, min(num_ranks, self.ranks_per_host) / self.cores_per_host)


def chunk_blocks(model: ModelProfile, bounds: Sequence[int]) -> list[tuple[BlockProfile, ...]]:
    """The blocks of each chunk."""
    return [model.blocks[first:last] for first, last in pairwise(bounds)]
