"""Cutting a model: the blocks it is made of, in order, and modules that hold a run of them. Knows nothing of ranks.

    tokens -> [ embedding ] -x-> [ blocks.0 ] -x-> [ blocks.1 ] -x-> [ head ] -> logits
    border   0              1                2                3                4
    parts      token_embedding     blocks.0          blocks.1          norm
               position_embedding                                      token_embedding  <- tied: one part in two blocks

What passes between blocks are named tensors. A border is crossed by those that a later block still reads, so a skip
connection is one more name that travels on until its reader. No block is built before a module of a run asks for it.

A part is a module under its name in the whole model, so parameters are called the same however the model is cut. Its
initial weights are drawn from a generator seeded by (seed, name), so they are the same too. One part in several blocks is
one set of parameters: cut apart, each run holds an equal copy, and whoever trains them sums their gradients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import torch
from torch import Tensor, nn

from sparkring.errors import ConfigError

Factory = Callable[[], nn.Module]
Result = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
X, LOGITS = "x", "logits"
"""What most blocks read and write, and what the last one writes."""


def in_turn(parts: Sequence[nn.Module], x: Tensor, *beside: Tensor) -> Tensor:
    """Pass ``x`` through the parts, one after the other; each takes what stands ``beside`` it, too."""
    for part in parts:
        x = part(x, *beside)
    return x


@dataclass(frozen=True)
class Block:
    """What is never cut: some parts, and how they make named tensors of named tensors."""

    name: str
    """In messages and cuts by hand."""
    parts: Mapping[str, Factory]
    """Factories of its modules by their names in the whole model, e.g. ``blocks.3``."""
    run: Callable[..., Result] = in_turn
    """``run(parts, *tensors)``: tensors in the order of ``reads`` in, in the order of ``writes`` (or by name) out."""
    reads: tuple[str, ...] = (X,)
    """Names of the tensors that it takes."""
    writes: tuple[str, ...] = (X,)
    """Names of the tensors that it makes; one that exists already is replaced."""

    def __call__(self, parts: Sequence[nn.Module], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the block; returns what it writes."""
        result = self.run(parts, *(tensors[name] for name in self.reads))
        if isinstance(result, Tensor):
            result = (result,)
        if len(result) != len(self.writes) or (isinstance(result, Mapping) and result.keys() != set(self.writes)):
            found = f"tensors {', '.join(result)}" if isinstance(result, Mapping) else f"{len(result)} tensors"
            raise ConfigError(f"block {self.name} returned {found}, but it writes {', '.join(self.writes)}; return one tensor a name.")
        return dict(result) if isinstance(result, Mapping) else dict(zip(self.writes, result, strict=True))


@dataclass(frozen=True)
class BlockList(Sequence[Block]):
    """The blocks of a whole model."""

    blocks: tuple[Block, ...]
    inputs: tuple[str, ...]
    """Tensors that the first block may read; a later one may too, they travel on to it."""
    outputs: tuple[str, ...] = (LOGITS,)
    """Tensors that the whole model returns."""

    def __post_init__(self) -> None:
        names = [block.name for block in self.blocks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            raise ConfigError(f"blocks named {', '.join(twice)} twice; give each its own name." if twice else "a model of no blocks.")
        missing = [name for name in self._needed_before()[0] if name not in self.inputs]
        if missing:
            raise ConfigError(f"{', '.join(missing)}: a block reads it or the model returns it, but no block before writes it and it is no "
                              f"input ({', '.join(self.inputs)}); name it in the writes of a block.")

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Block]: ...
    def __getitem__(self, index: int | slice) -> Block | Sequence[Block]:
        return self.blocks[index]

    def crossing(self, border: int) -> tuple[str, ...]:
        """The tensors that pass from block ``border - 1`` to block ``border``, in a fixed order.

        Border 0 is what the first block takes from the batch (also for later ones), border ``len(self)`` the model's outputs.
        """
        return self._needed_before()[border]

    def shared_parts(self, bounds: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Parts that several runs hold a copy of, and which runs those are.

        Args:
            bounds: First block of each run and, last, the number of blocks: ``(0, 3, 6)`` are two runs of three.
        """
        holders: dict[str, list[int]] = {}
        for run, (first, last) in enumerate(pairwise(bounds)):
            for part in dict.fromkeys(part for block in self.blocks[first:last] for part in block.parts):
                holders.setdefault(part, []).append(run)
        return {part: tuple(runs) for part, runs in holders.items() if len(runs) > 1}

    def _needed_before(self) -> list[tuple[str, ...]]:
        """For each border, what some later block reads before it is written anew."""
        needed = list(self.outputs)
        borders = [tuple(needed)]
        for block in reversed(self.blocks):
            needed = list(dict.fromkeys([*block.reads, *(name for name in needed if name not in block.writes)]))
            borders.append(tuple(needed))
        return borders[::-1]


class BlockRun(nn.Module):
    """The modules of blocks ``first`` to ``last`` under their names in the whole model."""

    autocast: torch.dtype | None = None
    """Type in which each block computes what ``torch.autocast`` casts down; None: as its parameters are."""

    def __init__(self, blocks: BlockList, *, first: int = 0, last: int | None = None, seed: int | None = None) -> None:
        """Build the run's parts and nothing else.

        Args:
            blocks: Of the whole model.
            first: Number of the run's first block.
            last: One past its last; None: to the end.
            seed: The whole model's; None draws one from torch's generator. Give all runs of one model the same.
        """
        super().__init__()
        self.block_list, self.first, self.last = blocks, first, len(blocks) if last is None else last
        seed = draw_seed() if seed is None else seed
        for block in self.own_blocks:
            for name, factory in block.parts.items():
                if not _has(self, name):
                    _place(self, name, seeded(factory, seed=seed, name=name))

    @property
    def own_blocks(self) -> Sequence[Block]:
        """The blocks of this run."""
        return self.block_list[self.first:self.last]

    def run_blocks(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the blocks on ``crossing(first)``; returns ``crossing(last)``."""
        known = dict(tensors)
        for block in self.own_blocks:
            with self._casting(known):  # a block at a time, so that a cut between blocks changes nothing
                known |= block([self.get_submodule(name) for name in block.parts], known)
        return {name: known[name] for name in self.block_list.crossing(self.last)}


    def _casting(self, tensors: Mapping[str, Tensor]) -> AbstractContextManager[object]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(next(iter(tensors.values())).device.type, dtype=self.autocast)


class StageModule(BlockRun):
    """A run of blocks as a stage computes it: named tensors in, those that cross the next border out."""

    def forward(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what crosses the border after this run (the model's outputs after the last)."""
        return self.run_blocks(tensors)

    def parameters_of(self, parts: Sequence[str]) -> list[str]:
        """Names of this run's parameters that belong to some of these parts."""
        return [name for name, _ in self.named_parameters() if any(name.startswith(f"{part}.") for part in parts)]


class WholeModel(BlockRun):
    """All blocks, called like any torch module."""

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return the model's first output for its inputs, in the order of ``block_list.inputs`` or by name."""
        blocks = self.block_list
        return self.run_blocks(dict(zip(blocks.inputs, inputs, strict=False)) | named)[blocks.outputs[0]]


def draw_seed() -> int:
    """A seed for all parts of one model, drawn from torch's generator: a function of ``torch.manual_seed``."""
    return int(torch.randint(2 ** 62, (), device="cpu"))  # also where modules are built on the meta device


def seeded(factory: Factory, *, seed: int, name: str) -> nn.Module:
    """Build a part from a generator of its own, so that its weights do not depend on what is built before it, or at all."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return factory()


def part_elements(block: Block) -> dict[str, int]:
    """Elements of the parameters of each part of a block, without memory for them."""
    with torch.device("meta"), torch.random.fork_rng(devices=()):
        return {name: sum(parameter.numel() for parameter in factory().parameters()) for name, factory in block.parts.items()}


def _has(module: nn.Module, name: str) -> bool:
    try:
        module.get_submodule(name)
    except AttributeError:
        return False
    return True


def _place(root: nn.Module, name: str, part: nn.Module) -> None:
    """Put a part under a dotted name, e.g. ``blocks.3``."""
    *path, leaf = name.split(".")
    for step in path:
        if step not in root._modules:  # noqa: SLF001 - children only: a method may have the same name
            root.add_module(step, nn.Module())
        root = root.get_submodule(step)
    root.add_module(leaf, part)


def has_gradient(tensor: Tensor) -> bool:
    """Whether a tensor's numbers can have a gradient, which then crosses a border back: real and complex ones, not whole ones."""
    return tensor.is_floating_point() or tensor.is_complex()
