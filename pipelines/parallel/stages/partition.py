"""Where to cut a model's blocks into runs: by count, by hand, or by time within memory. Pure: numbers in, bounds out.

    blocks     b0 b1 b2 | b3 b4 | b5        three runs
    bounds     0          3       5    6    run r holds the blocks bounds[r] to bounds[r + 1] - 1

A pipeline is as fast as its slowest stage, so the cut minimizes the slowest run's time. Of all such cuts it takes the most even
one (smallest sum of squares). Both are found exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from sparkring.errors import LayoutRefused, nearest

Bounds = tuple[int, ...]
RunCost = Callable[[int, int, int], float]
"""``cost(first, last, run)`` of run number ``run`` if it holds the blocks ``first`` to ``last`` - 1; infinite if it cannot."""
_ROUNDING = 1 + 1e-12


@dataclass(frozen=True, kw_only=True)
class BlockCost:
    """The cost of a block on the rank that computes it."""

    name: str
    seconds: float = 0.0
    """Seconds of the forward and backward pass of one micro-batch."""
    parameter_bytes: int = 0
    """Bytes of the parameters that no other block shares."""
    shared_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of its tied parts by name; a run with several of their blocks holds them once."""
    activation_bytes: int = 0
    """Bytes that the forward pass of one micro-batch keeps for the backward pass."""


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """The memory of a rank beside that of a bare process."""

    copies: float
    """Bytes per byte of parameters: 2 for values and gradients, plus 1 for momentum or 2 for Adam."""
    in_flight: tuple[int, ...]
    """Micro-batches whose activations each run holds at once: all with GPipe, with 1F1B the number of stages from here to the end."""
    border_bytes: tuple[int, ...] = ()
    """Bytes that cross each inner border for one micro-batch, border 1 first; held once on either side. Empty: 0."""
    limit_bytes: float = math.inf
    """Most bytes of a run."""

    def run_bytes(self, costs: Sequence[BlockCost], first: int, last: int, run: int) -> float:
        """Bytes of run number ``run`` with the blocks ``first`` to ``last`` - 1."""
        blocks = costs[first:last]
        shared = {part: size for block in blocks for part, size in block.shared_bytes.items()}
        parameters = sum(block.parameter_bytes for block in blocks) + sum(shared.values())
        activations = self.in_flight[run] * sum(block.activation_bytes for block in blocks)
        return self.copies * parameters + activations + _at_borders(self.border_bytes, first, last)


def cut_by_count(num_blocks: int, num_runs: int) -> Bounds:
    """Give every run equally many blocks, the first runs one more if there is a remainder."""
    _require_blocks(num_blocks, num_runs)
    even, more = divmod(num_blocks, num_runs)
    return tuple(accumulate((even + (run < more) for run in range(num_runs)), initial=0))


def cut_by_hand(names: Sequence[str], wanted: Sequence[int] | Sequence[str]) -> Bounds:
    """Cut as the user asks.

    Args:
        names: Names of the model's blocks.
        wanted: Number of blocks of each run, e.g. ``[3, 2, 1]``; or the name of the first block of each run but the first.
    Raises:
        LayoutRefused: a number is below 1, numbers do not add up, or names are unknown or out of order.
    """
    counts = [count for count in wanted if isinstance(count, int)]
    if counts:
        if len(counts) < len(wanted) or min(counts) < 1 or sum(counts) != len(names):
            raise LayoutRefused(f"blocks {list(wanted)} a stage: the model has {len(names)} blocks; give one number from 1 up a stage, "
                                f"{len(names)} in all.")
        return tuple(accumulate(counts, initial=0))
    firsts = [0]
    for name in map(str, wanted):
        if name not in names:
            raise LayoutRefused(f"no block is called {name!r}{nearest(name, names)}; the blocks are {', '.join(names)}.")
        if names.index(name) <= firsts[-1]:
            raise LayoutRefused(f"block {name} cannot be the first of stage {len(firsts)}: it is block {names.index(name)}, and stage "
                                f"{len(firsts) - 1} begins with block {firsts[-1]}; name the stages' first blocks in the model's order.")
        firsts.append(names.index(name))
    return (*firsts, len(names))


def cut_by_time(costs: Sequence[BlockCost], num_runs: int, *, replicas: Sequence[int] = (), border_seconds: Sequence[float] = (),
                memory: MemoryModel | None = None) -> Bounds:
    """Make the slowest run as fast as possible.

    Args:
        costs: Costs of the blocks, in order.
        num_runs: Stages, or stages times chunks.
        replicas: Copies of each run, which share its micro-batches; default: one each.
        border_seconds: Seconds that a micro-batch costs on either side of each inner border, border 1 first.
        memory: The memory limit of each run.
    Raises:
        LayoutRefused: there are fewer blocks than runs, or no cut fits.
    """
    _require_blocks(len(costs), num_runs)
    seconds = list(accumulate((block.seconds for block in costs), initial=0.0))
    copies = tuple(replicas) or (1,) * num_runs

    def cost(first: int, last: int, run: int) -> float:
        if memory and memory.run_bytes(costs, first, last, run) > memory.limit_bytes:
            return math.inf
        return (seconds[last] - seconds[first] + _at_borders(border_seconds, first, last)) / copies[run]

    bounds = most_even(len(costs), num_runs, cost)
    if bounds is None:
        assert memory is not None
        raise _does_not_fit(costs, num_runs, memory)
    return bounds


def most_even(num_blocks: int, num_runs: int, cost: RunCost) -> Bounds | None:
    """The cut with the smallest largest cost of a run and, among those, the smallest sum of squared costs.

    Returns:
        The bounds; None if every cut has a run of infinite cost.
    """
    largest = _best(num_blocks, num_runs, cost, max)
    if largest is None:
        return None
    limit = max(_costs(largest, cost)) * _ROUNDING

    def squared(first: int, last: int, run: int) -> float:
        own = cost(first, last, run)
        return own * own if own <= limit else math.inf

    return _best(num_blocks, num_runs, squared, lambda before, own: before + own)


def _best(num_blocks: int, num_runs: int, cost: RunCost, join: Callable[[float, float], float]) -> Bounds | None:
    """Dynamic programming over (runs, blocks): the best way to put the first ``last`` blocks into the first ``run`` + 1 runs."""
    best = [0.0] + [math.inf] * num_blocks
    choices: list[list[int]] = []
    for run in range(num_runs):
        following, choice = [math.inf] * (num_blocks + 1), [0] * (num_blocks + 1)
        for last in range(run + 1, num_blocks - (num_runs - run - 1) + 1):
            for first in range(run, last):
                if best[first] < math.inf:
                    value = join(best[first], cost(first, last, run))
                    if value < following[last]:
                        following[last], choice[last] = value, first
        best = following
        choices.append(choice)
    if best[num_blocks] == math.inf:
        return None
    bounds = [num_blocks]
    for choice in reversed(choices):
        bounds.append(choice[bounds[-1]])
    return tuple(reversed(bounds))


def _costs(bounds: Bounds, cost: RunCost) -> list[float]:
    return [cost(first, last, run) for run, (first, last) in enumerate(pairwise(bounds))]


def _at_borders(of_borders: Sequence[float], first: int, last: int) -> float:
    """The cost of a run's two borders; the model's ends are no borders."""
    inner = [border - 1 for border in (first, last) if 1 <= border <= len(of_borders)]
    return sum(of_borders[border] for border in inner)


def _require_blocks(num_blocks: int, num_runs: int) -> None:
    if not 1 <= num_runs <= num_blocks:
        raise LayoutRefused(f"{num_runs} stages (times chunks): the model has {num_blocks} blocks and is cut between them; "
                            f"ask for 1 to {num_blocks}, or cut the model into more blocks.")


def _does_not_fit(costs: Sequence[BlockCost], num_runs: int, memory: MemoryModel) -> LayoutRefused:
    """Name the block or, if each fits alone, the cut that is too large."""
    remedy = "give a rank more memory, make the micro-batches smaller, recompute activations, or take more shards"
    limit = _megabytes(memory.limit_bytes)
    for place, block in enumerate(costs):
        runs = range(max(0, num_runs - (len(costs) - place)), min(place, num_runs - 1) + 1)  # each other run needs a block, too
        least = min(memory.run_bytes(costs, place, place + 1, run) for run in runs)
        if least > memory.limit_bytes:
            return LayoutRefused(f"block {block.name} alone takes {_megabytes(least)}, a rank may take {limit}; {remedy}.")
    bounds = most_even(len(costs), num_runs, lambda first, last, run: memory.run_bytes(costs, first, last, run))
    assert bounds is not None
    sizes = _costs(bounds, lambda first, last, run: memory.run_bytes(costs, first, last, run))
    worst = sizes.index(max(sizes))
    blocks = f"{costs[bounds[worst]].name} to {costs[bounds[worst + 1] - 1].name}"
    return LayoutRefused(f"no cut into {num_runs} fits: in the best one, stage {worst} with blocks {blocks} takes "
                         f"{_megabytes(sizes[worst])}, a rank may take {limit}; take more stages, or {remedy}.")


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.4g} MB"
