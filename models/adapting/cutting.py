"""From the steps of a network to its blocks: each block begins with a layer that has parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sparkring.errors import ConfigError
from sparkring.models import no_rows
from sparkring.models.adapting.exchanging import CalledDropout, seeded_dropout
from sparkring.models.adapting.recording import Recording, Rows, Step, Value, leaves, mapped, tensors_in
from sparkring.models.adapting.tying import Tie, lent
from sparkring.models.blocks import LOGITS, Block, Factory
from sparkring.models.inputs import ROW_SEEDS


@dataclass(frozen=True)
class Slice:
    """The ``run`` of a block: its steps, on its parts and the tensors that it reads."""

    steps: tuple[Step, ...]
    parts: tuple[str, ...]
    """Names of the block's parts."""
    calls: tuple[int, ...]
    """How often earlier blocks call each part."""
    reads: tuple[int, ...]
    """Numbers of the tensors that it reads; the rows' seeds, if any, follow."""
    writes: tuple[int, ...]
    by_rows: tuple[bool, ...]
    """For each tensor that it returns, whether its first axis is the rows."""
    ties: tuple[Tie, ...]
    """Parameters of its parts that are those of another part."""
    shape: tuple[int, ...] | None
    """Of the first block: the shape of a row for which the network was recorded."""

    def __call__(self, parts: Sequence[nn.Module], *tensors: Tensor) -> list[Tensor]:
        """Return the tensors that later blocks read."""
        self._require_shape(tensors[0])
        if no_rows.has_none(tensors):
            return no_rows.of_none(self._run, parts, tensors, by_rows=self.by_rows)
        return self._run(parts, *tensors)

    def _run(self, parts: Sequence[nn.Module], *tensors: Tensor) -> list[Tensor]:
        known = dict(zip(self.reads, tensors, strict=False))
        modules = dict(zip(self.parts, parts, strict=True))
        seeds_B = tensors[len(self.reads)] if len(tensors) > len(self.reads) else None
        actual = partial(_actual, known, tensors[0])
        with lent(self.ties, modules), seeded_dropout(parts, seeds_B, calls=self.calls):
            for step in self.steps:
                args, kwargs = mapped(step.args, actual)
                result = (modules[step.call] if isinstance(step.call, str) else step.call)(*args, **kwargs)
                known.update(zip(step.writes, tensors_in(result), strict=True))
        return [known[number] for number in self.writes]

    def _require_shape(self, first: Tensor) -> None:
        if self.shape is not None and first.shape[1:] != self.shape:
            raise ConfigError(f"the network was adapted for rows of shape {self.shape} and got {tuple(first.shape[1:])}; "
                              "give it rows of the shape that the dataset has.")


def _actual(known: Mapping[int, Tensor], first: Tensor, value: Any) -> Any:
    if isinstance(value, Value):
        return known[value.number]
    if isinstance(value, Rows):
        return value.factor * first.shape[0]
    return first.device if isinstance(value, torch.device) else value


@dataclass(frozen=True)
class Cutter:
    """Groups the steps of one network into blocks."""

    recording: Recording
    inputs: tuple[str, ...]
    """Names of the network's inputs."""
    shape: tuple[int, ...]
    """Shape of a row of the first input."""
    layers: Mapping[str, nn.Module]
    """The modules that steps call, by name."""
    factories: Mapping[str, Factory]
    """Builds each of them, and each owner of tied parameters."""
    ties: tuple[Tie, ...]

    def blocks(self) -> tuple[Block, ...]:
        """The blocks, in the order of the steps."""
        groups = self._groups()
        return tuple(self._block(groups, place) for place in range(len(groups)))

    def _groups(self) -> list[list[Step]]:
        groups: list[list[Step]] = [[]]
        for step in self.recording.steps:
            if self._has_parameters(step) and any(self._has_parameters(each) for each in groups[-1]):
                groups.append([])
            groups[-1].append(step)
        return groups

    def _block(self, groups: Sequence[Sequence[Step]], place: int) -> Block:
        group, called = groups[place], _called(groups[place])
        before = Counter(path for other in groups[:place] for path in _called(other))
        ties = tuple(tie for tie in self.ties if tie.layer in called)
        parts = tuple(dict.fromkeys([*(part for path in called for part in self._parts(path)), *(tie.owner for tie in ties)]))
        reads, writes = _reads(group), self._writes(groups, place)
        run = Slice(tuple(group), parts, calls=tuple(before[part] for part in parts), reads=reads, writes=writes, ties=ties,
                    by_rows=tuple(map(self.recording.is_by_rows, writes)), shape=None if place else self.shape)
        seeds = [ROW_SEEDS] if any(self._drops(path) for path in called) else []
        return Block(self._name(group, before), {part: self.factories[part] for part in parts}, run=run,
                     reads=(*(self._tensor(number) for number in reads), *seeds),
                     writes=tuple(self._tensor(number) for number in writes))

    def _name(self, group: Sequence[Step], before: Mapping[str, int]) -> str:
        """The name of the block's layer with parameters; where earlier blocks called that too, with a number."""
        name = next((str(step.call) for step in group if self._has_parameters(step)), "start")
        return f"{name}#{before[name]}" if before[name] else name

    def _parts(self, path: str) -> list[str]:
        """A layer, and the modules inside it whose parameters other layers borrow."""
        return [path, *(tie.owner for tie in self.ties if tie.owner.startswith(f"{path}."))]

    def _writes(self, groups: Sequence[Sequence[Step]], place: int) -> tuple[int, ...]:
        later = {number for group in groups[place + 1:] for step in group for number in step.reads} | {self.recording.output}
        return tuple(sorted({number for step in groups[place] for number in step.writes} & later))

    def _tensor(self, number: int) -> str:
        """The name of a tensor."""
        if number == self.recording.output:
            return LOGITS
        return self.inputs[number] if number < len(self.inputs) else f"tensor{number}"

    def _has_parameters(self, step: Step) -> bool:
        return isinstance(step.call, str) and any(True for _ in self.layers[step.call].parameters())

    def _drops(self, path: str) -> bool:
        return any(isinstance(module, CalledDropout) and module.p for module in self.layers[path].modules())


def _called(group: Sequence[Step]) -> list[str]:
    """The layers that a group calls, each as often as it does."""
    return [step.call for step in group if isinstance(step.call, str)]


def _reads(group: Sequence[Step]) -> tuple[int, ...]:
    """The tensors that a group takes from earlier ones; the first input first, if it needs the number of rows or a device."""
    made = {number for step in group for number in step.writes}
    numbers = tuple(dict.fromkeys(number for step in group for number in step.reads if number not in made))
    return (0, *(number for number in numbers if number)) if not numbers or any(_of_batch(group)) else numbers


def _of_batch(group: Sequence[Step]) -> Iterator[bool]:
    return (isinstance(value, Rows | torch.device) for step in group for value in leaves(step.args))
