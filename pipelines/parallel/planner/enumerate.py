"""All layouts worth predicting: numbers of stages, replicas, schedules and micro-batches. Pure.

    4 ranks     (4)  |  (2 2) (3 1) (1 3)  |  (2 1 1) (1 2 1) (1 1 2)  |  (1 1 1 1)         and the same for 1 and 2 ranks

Unequal replicas multiply the layouts, so beyond ``MOST_UNEQUAL`` ranks all stages have equally many. Recomputation and a sharded
optimizer only cost time, so the planner tries them only if a layout does not fit without them (``remedies``). It does not try
transports either: it takes the faster one for the layout's messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import lcm

from sparkring.conf.schema import Recompute, ScheduleName

MOST_UNEQUAL = 6
"""Ranks up to which stages may have unequal replicas."""
MOST_STAGES = 16
DEPTHS = (1, 2, 4, 8)
"""Micro-batches per replica and stage that are tried."""
CHUNKS = (2, 4)
"""Chunks per stage that are tried with an interleaved schedule."""
LANES_FOR_NEARLY = 4
"""Lanes per micro-batch from which one more or less matters little."""
MOST_PASSES = 4096
"""Micro-batches times chunks of one pipeline above which a schedule is not predicted."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One layout, without the cut."""

    replicas: tuple[int, ...]
    micro_batches: int
    """Micro-batches of a step, over all replicas."""
    shards: int = 1
    """Ranks that together hold one copy of a stage."""
    schedule: ScheduleName = "1f1b"
    chunks_per_stage: int = 1
    recompute: Recompute = "never"
    shard_optimizer: bool = False

    @property
    def num_ranks(self) -> int:
        """Ranks of the layout."""
        return sum(self.replicas) * self.shards

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline."""
        return len(self.replicas)

    @property
    def num_chunks(self) -> int:
        """Runs of blocks into which the model is cut."""
        return self.num_stages * self.chunks_per_stage

    @property
    def is_plain(self) -> bool:
        """Whether this is plain data parallelism: every rank holds the whole model and does all of its rows at once."""
        return self.replicas == (self.micro_batches,) and self.shards == 1 and not self.shard_optimizer and self.recompute == "never"


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Limits on the layouts that may be chosen."""

    micro_batches: int | None = None
    """The only number of micro-batches of a step; None: any."""
    lanes: int | None = None
    """Lanes to which the run's rows are dealt; a micro-batch takes whole lanes. None: not fixed yet."""
    replicas: tuple[int, ...] = ()
    """The only replicas of the stages, if there are ranks for them; the rest is still chosen. Empty: any."""
    shards: int = 1
    """Shards of each replica, with ``replicas``."""

    @property
    def num_ranks(self) -> int:
        """Ranks that ``replicas`` take; 0: any number."""
        return sum(self.replicas) * self.shards

    def allows(self, micro_batches: int) -> bool:
        """Whether ``micro_batches`` would get equally many lanes, or nearly."""
        return self.lanes is None or self.lanes % micro_batches == 0 or micro_batches * LANES_FOR_NEARLY <= self.lanes

    def describe(self) -> str:
        """The limits in words."""
        count = "micro-batches" if self.micro_batches is None else f"{self.micro_batches} micro-batches"
        even = count if self.lanes is None else f"{count} that share {self.lanes} lanes evenly"
        return f"replicas {list(self.replicas)} of {self.shards} shards and {even}" if self.replicas else even


UNCONSTRAINED = Constraints()


def candidates(world: int, *, num_blocks: int, batch_rows: int, shards: Iterable[int] = (1,), fixed: Constraints = UNCONSTRAINED,
               ) -> Iterator[Candidate]:
    """Every candidate on up to ``world`` ranks.

    Args:
        world: Ranks that are available.
        num_blocks: Blocks of the model; it is cut between them.
        batch_rows: Rows of a step over all ranks; a micro-batch has at least one row.
        shards: Numbers of shards that the blocks can be dealt to.
        fixed: Limits on the choice.
    """
    for replicas, count in _shapes(world, num_blocks, shards, fixed):
        for micro_batches in filter(fixed.allows, _micro_batches(replicas, batch_rows, fixed.micro_batches)):
            for schedule, chunks in _schedules(replicas, num_blocks):
                if micro_batches // min(replicas) * chunks * len(replicas) <= MOST_PASSES:
                    yield Candidate(replicas=replicas, micro_batches=micro_batches, shards=count, schedule=schedule,
                                    chunks_per_stage=chunks)


def _shapes(world: int, num_blocks: int, shards: Iterable[int], fixed: Constraints) -> Iterator[tuple[tuple[int, ...], int]]:
    """Replicas of each stage, and shards."""
    if 0 < fixed.num_ranks <= world:
        if fixed.shards in shards and len(fixed.replicas) <= num_blocks:
            yield fixed.replicas, fixed.shards
        return
    for num_ranks, count in product(ring_sizes(world), sorted(shards)):
        for replicas in shapes(num_ranks // count, most_stages=min(num_blocks, MOST_STAGES)) if num_ranks % count == 0 else ():
            yield replicas, count


def ring_sizes(world: int) -> tuple[int, ...]:
    """Numbers of ranks to try: all, and the powers of two below, since fewer ranks may be as fast."""
    return tuple(sorted({world} | {2 ** power for power in range(world.bit_length()) if 2 ** power < world}))


def shapes(num_ranks: int, *, most_stages: int) -> Iterator[tuple[int, ...]]:
    """Replicas of each stage, for all ways to deal ``num_ranks`` ranks to stages."""
    for stages in range(1, min(num_ranks, most_stages) + 1):
        if num_ranks <= MOST_UNEQUAL:
            yield from _compositions(num_ranks, stages)
        elif num_ranks % stages == 0:
            yield (num_ranks // stages,) * stages


def remedies(candidate: Candidate) -> Iterator[Candidate]:
    """The candidate, then variants that need less memory, the cheapest first."""
    yield candidate
    copies = max(candidate.replicas) > 1
    if copies:
        yield replace(candidate, shard_optimizer=True)
    yield replace(candidate, recompute="always")
    if copies:
        yield replace(candidate, recompute="always", shard_optimizer=True)


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        yield from ((first, *rest) for rest in _compositions(total - first, parts - 1))


def _micro_batches(replicas: tuple[int, ...], batch_rows: int, given: int | None) -> list[int]:
    even, stages = lcm(*replicas), len(replicas)
    if given is not None:
        return [] if given % even or given > batch_rows else [given]
    wanted = {even * max(1, depth * stages * min(replicas) // even) for depth in DEPTHS}
    return sorted(count for count in wanted if count <= batch_rows)


def _schedules(replicas: tuple[int, ...], num_blocks: int) -> Iterator[tuple[ScheduleName, int]]:
    stages = len(replicas)
    yield "1f1b", 1
    if stages == 1:
        return
    yield "gpipe", 1
    yield "zero_bubble", 1
    if len(set(replicas)) == 1:
        yield from (("interleaved", chunks) for chunks in CHUNKS if chunks * stages <= num_blocks)
