"""A model as a list of blocks that can be cut, and modules that hold a run of blocks. Knows nothing of ranks.

    tokens -> [ embedding ] -x-> [ blocks.0 ] -x-> [ blocks.1 ] -x-> [ head ] -> logits
    border   0              1                2                3                4
    parts      token_embedding     blocks.0          blocks.1          norm
               position_embedding                                      token_embedding  <- tied: one part in two blocks

Blocks pass named tensors to each other. A tensor crosses a border if a later block reads it, so a skip connection is a
name that crosses several borders. A block is built only in a module whose run holds it.

A part is a module under its name in the whole model, so parameters have the same names in every cut. Its initial
weights are drawn from a generator seeded by (seed, name), so they are the same, too. A part of several blocks is one
set of parameters. If a cut separates these blocks, each run holds a copy, and training sums the copies' gradients.
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
"""The tensor that most blocks read and write, and the tensor that the last block writes."""


def in_turn(parts: Sequence[nn.Module], x: Tensor, *beside: Tensor) -> Tensor:
    """Pass ``x`` through the parts, one after the other; each also takes the tensors ``beside`` it."""
    for part in parts:
        x = part(x, *beside)
    return x


@dataclass(frozen=True)
class Block:
    """The smallest piece of a cut: some parts, and a function that runs them on named tensors."""

    name: str
    """The block's name in messages and in cuts by hand."""
    parts: Mapping[str, Factory]
    """Factories of its modules by their names in the whole model, e.g. ``blocks.3``."""
    run: Callable[..., Result] = in_turn
    """``run(parts, *tensors)`` takes the tensors of ``reads`` and returns those of ``writes``, in order or by name."""
    reads: tuple[str, ...] = (X,)
    """Names of the tensors that it takes."""
    writes: tuple[str, ...] = (X,)
    """Names of the tensors that it returns; they replace earlier tensors of these names."""

    def __call__(self, parts: Sequence[nn.Module], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the block; returns what it writes."""
        result = self.run(parts, *(tensors[name] for name in self.reads))
        if isinstance(result, Tensor):
            result = (result,)
        if len(result) != len(self.writes) or (isinstance(result, Mapping) and result.keys() != set(self.writes)):
            found = f"tensors {', '.join(result)}" if isinstance(result, Mapping) else f"{len(result)} tensors"
            raise ConfigError(f"block {self.name} returned {found}, but it writes {', '.join(self.writes)}; return one tensor for each.")
        return dict(result) if isinstance(result, Mapping) else dict(zip(self.writes, result, strict=True))


@dataclass(frozen=True)
class BlockList(Sequence[Block]):
    """The blocks of a whole model."""

    blocks: tuple[Block, ...]
    inputs: tuple[str, ...]
    """Tensors of the batch that blocks may read; they cross borders until their last reader."""
    outputs: tuple[str, ...] = (LOGITS,)
    """Tensors that the whole model returns."""
    uncut: str = ""
    """Why a network of one block could not be cut; empty: nothing stood against it."""
    whole_rows: bool = False
    """Whether the blocks take rows of the dataset's length only, and no shorter ones, as those of ``adapt`` do."""

    def __post_init__(self) -> None:
        names = [block.name for block in self.blocks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            raise ConfigError(f"several blocks are named {', '.join(twice)}; give each its own name." if twice
                              else "the model has no blocks; list at least one.")
        missing = [name for name in self._needed_before()[0] if name not in self.inputs]
        if missing:
            raise ConfigError(f"{', '.join(missing)}: a block reads it or the model returns it, but no earlier block writes it and it is "
                              f"not an input ({', '.join(self.inputs)}); name it in the writes of a block.")

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

        The tensors of the batch cross border 0, the model's outputs cross border ``len(self)``.
        """
        return self._needed_before()[border]

    def shared_parts(self, bounds: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The parts of which several runs hold a copy, with the numbers of these runs.

        Args:
            bounds: First block of each run and, last, the number of blocks: ``(0, 3, 6)`` are two runs of three.
        """
        holders: dict[str, list[int]] = {}
        for run, (first, last) in enumerate(pairwise(bounds)):
            for part in dict.fromkeys(part for block in self.blocks[first:last] for part in block.parts):
                holders.setdefault(part, []).append(run)
        return {part: tuple(runs) for part, runs in holders.items() if len(runs) > 1}

    def _needed_before(self) -> list[tuple[str, ...]]:
        """For each border, the tensors that a later block reads before another block writes them."""
        needed = list(self.outputs)
        borders = [tuple(needed)]
        for block in reversed(self.blocks):
            needed = list(dict.fromkeys([*block.reads, *(name for name in needed if name not in block.writes)]))
            borders.append(tuple(needed))
        return borders[::-1]


class BlockRun(nn.Module):
    """The modules of blocks ``first`` to ``last`` under their names in the whole model."""

    autocast: torch.dtype | None = None
    """The type to which ``torch.autocast`` casts inside each block; None: no casts."""

    def __init__(self, blocks: BlockList, *, first: int = 0, last: int | None = None, seed: int | None = None) -> None:
        """Build the run's parts and nothing else.

        Args:
            blocks: The blocks of the whole model.
            first: Number of the run's first block.
            last: One past the number of its last block; None: up to the end.
            seed: Seed of the whole model, the same for all its runs; None draws one from torch's generator.
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
    """A run of blocks that a stage computes: takes the tensors that cross its first border, by name."""

    def forward(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that cross the border after this run; after the last run, the model's outputs."""
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
    """Draw a seed for all parts of one model from torch's generator, so that ``torch.manual_seed`` determines it."""
    return int(torch.randint(2 ** 62, (), device="cpu"))  # on the CPU even while modules are built on the meta device


def seeded(factory: Factory, *, seed: int, name: str) -> nn.Module:
    """Build a part with its own generator, so that its weights do not depend on which other parts are built."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return factory()


def part_elements(block: Block) -> dict[str, int]:
    """Number of parameter elements of each part of a block; allocates none of them."""
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
        if not _is_child(root, step, of=name):
            root.add_module(step, nn.Module())
        root = root.get_submodule(step)
    _is_child(root, leaf, of=name)
    root.add_module(leaf, part)


def _is_child(root: nn.Module, step: str, *, of: str) -> bool:
    """Whether a module has a child of that name. Raises ConfigError if it has anything else of that name, such as a method."""
    if step in root._modules:  # noqa: SLF001 - children only
        return True
    if hasattr(root, step):
        raise ConfigError(f"a part of the network is called {of}, and the module that holds it has something else called {step}; give it "
                          "another name.")
    return False


def has_gradient(tensor: Tensor) -> bool:
    """Whether a tensor can have a gradient, which crosses its border backward; integers have none."""
    return tensor.is_floating_point() or tensor.is_complex()
