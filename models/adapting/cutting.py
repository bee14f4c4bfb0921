"""From the steps of a network to its blocks: each block begins with a layer that has parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparkring.errors import ConfigError
from sparkring.models.adapting.exchanging import CalledDropout, seeded_dropout
from sparkring.models.adapting.recording import Rows, Step, Value, mapped, tensors_in
from sparkring.models.adapting.tying import Tie, bound
from sparkring.models.blocks import LOGITS, Block, Factory
from sparkring.models.inputs import ROW_SEEDS


@dataclass(frozen=True)
class Slice:
    """The ``run`` of a block: the steps of one block, on its parts and the tensors that it reads."""

    steps: tuple[Step, ...]
    parts: tuple[str, ...]
    """Names of the block's parts."""
    calls: tuple[int, ...]
    """How often earlier blocks called each part."""
    reads: tuple[int, ...]
    """Numbers of the tensors that it reads; the rows' seeds, if any, follow."""
    writes: tuple[int, ...]
    ties: tuple[Tie, ...] = ()
    """Parameters of its parts that are those of another part."""
    shape: tuple[int, ...] | None = None
    """Of the first block: the shape of a row that was recorded."""

    def __call__(self, parts: Sequence[nn.Module], *tensors: Tensor) -> list[Tensor]:
        """Return the tensors that later blocks read."""
        self._require_shape(tensors[0])
        known = dict(zip(self.reads, tensors, strict=False))
        modules = dict(zip(self.parts, parts, strict=True))
        seeds_B = tensors[len(self.reads)] if len(tensors) > len(self.reads) else None
        with bound(self.ties, modules), seeded_dropout(parts, seeds_B, calls=self.calls):
            for step in self.steps:
                args, kwargs = mapped(step.args, lambda value: _actual(value, known, tensors[0]))
                result = (modules[step.call] if isinstance(step.call, str) else step.call)(*args, **kwargs)
                known |= dict(zip(step.writes, tensors_in(result), strict=True))
        return [known[number] for number in self.writes]

    def _require_shape(self, first: Tensor) -> None:
        if self.shape is not None and first.shape[1:] != self.shape:
            raise ConfigError(f"the network was adapted for rows of shape {self.shape} and got {tuple(first.shape[1:])}; "
                              "give it rows of the shape that the dataset has.")


def _actual(value: Any, known: Mapping[int, Tensor], first: Tensor) -> Any:
    if isinstance(value, Value):
        return known[value.number]
    if isinstance(value, Rows):
        return value.factor * len(first)
    return first.device if isinstance(value, torch.device) else value


def blocks_of_steps(steps: Sequence[Step], layers: Mapping[str, nn.Module], factories: Mapping[str, Factory], *, inputs: Sequence[str],
                    ties: Sequence[Tie], shape: tuple[int, ...]) -> tuple[Block, ...]:
    """Group a network's steps into blocks.

    Args:
        steps: From the inputs, tensors 0, 1, ..., to the output.
        layers: The modules that steps call, by name.
        factories: Builds each of them, and each part that holds tied parameters.
        inputs: Names of the network's inputs.
        ties: Its tied parameters.
        shape: Shape of a row of the first input.
    """
    groups = _grouped(steps, layers)
    output = steps[-1].writes[-1]
    names = {**dict(enumerate(inputs)), **_names(groups), output: LOGITS}
    calls: Counter[str] = Counter()
    blocks: list[Block] = []
    for place, group in enumerate(groups):
        called = dict.fromkeys(step.call for step in group if isinstance(step.call, str))
        tied = tuple(tie for tie in ties if tie.layer in called)
        parts = tuple(dict.fromkeys([*(part for path in called for part in (path, *_split_off(path, ties))), *(tie.owner for tie in tied)]))
        made = {number for step in group for number in step.writes}
        later = {number for other in groups[place + 1:] for step in other for number in step.reads} | {output}
        reads = _reads(group, made)
        writes = tuple(sorted(made & later))
        seeds = any(isinstance(layer, CalledDropout) and layer.p for path in called for layer in layers[path].modules())
        run = Slice(tuple(group), parts, tuple(calls[part] for part in parts), reads, writes, tied, None if place else shape)
        blocks.append(Block(_block_name(group, layers, [block.name for block in blocks]), {part: factories[part] for part in parts}, run=run,
                            reads=(*(names[number] for number in reads), *([ROW_SEEDS] if seeds else [])),
                            writes=tuple(names[number] for number in writes)))
        calls.update(step.call for step in group if isinstance(step.call, str))
    return tuple(blocks)


def _grouped(steps: Sequence[Step], layers: Mapping[str, nn.Module]) -> list[list[Step]]:
    groups: list[list[Step]] = [[]]
    for step in steps:
        if _has_parameters(step, layers) and any(_has_parameters(each, layers) for each in groups[-1]):
            groups.append([])
        groups[-1].append(step)
    return groups


def _reads(group: Sequence[Step], made: set[int]) -> tuple[int, ...]:
    """What a group takes from earlier ones; an input of the network first, if it needs the number of rows and takes nothing else."""
    numbers = tuple(dict.fromkeys(number for step in group for number in step.reads if number not in made))
    takes_rows = [True for step in group for value in _values(step.args) if isinstance(value, Rows | torch.device)]
    return (0, *(number for number in numbers if number)) if takes_rows or not numbers else numbers


def _values(args: Any) -> list[Any]:
    found: list[Any] = []
    mapped(args, found.append)
    return found


def _names(groups: Sequence[Sequence[Step]]) -> dict[int, str]:
    """A name for each tensor: of the step that makes it, and its number."""
    return {number: f"{step.call if isinstance(step.call, str) else step.call.__name__}:{number}"
            for group in groups for step in group for number in step.writes}


def _block_name(group: Sequence[Step], layers: Mapping[str, nn.Module], taken: Sequence[str]) -> str:
    """The name of its layer with parameters; a layer that is called again makes a block with a number."""
    name = next((str(step.call) for step in group if _has_parameters(step, layers)), "start")
    return name if name not in taken else f"{name}#{sum(other.partition('#')[0] == name for other in taken)}"


def _has_parameters(step: Step, layers: Mapping[str, nn.Module]) -> bool:
    return isinstance(step.call, str) and any(True for _ in layers[step.call].parameters())


def _split_off(path: str, ties: Sequence[Tie]) -> tuple[str, ...]:
    """The parts inside a layer that other layers share."""
    return tuple(dict.fromkeys(tie.owner for tie in ties if tie.owner.startswith(f"{path}.")))


