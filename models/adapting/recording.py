"""A network's forward pass as a list of steps: calls of its layers and of torch's functions between them.

    image -> [conv1] -> [bn1] -> [relu] -> [layer1.0] -> ... -> flatten -> [fc] -> logits
             a step: what is called, its arguments, the numbers of its tensors

The forward pass runs unchanged, on tensors without memory, so it takes the branches that it takes for such rows. It
runs with 2 rows and with 3: a number that differs between the two is a number of rows, times a factor. It runs in
training and in evaluation: a network that does other steps then is not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sparkring.models.adapting.exchanging import seeded_dropout

ROWS = (2, 3)
"""Rows of the recorded passes."""
_PLAIN = (int, float, str, bool, type(None), type(...), torch.dtype, torch.device, torch.memory_format, torch.layout)


class NotCuttable(Exception):
    """Why a network stays one block."""


@dataclass(frozen=True)
class Value:
    """In arguments, the place of the tensor of this number."""

    number: int


@dataclass(frozen=True)
class Rows:
    """In arguments, the place of a multiple of the number of rows."""

    factor: int


@dataclass(frozen=True)
class Step:
    """A call of a layer, or of a function of torch."""

    call: str | Callable[..., Any]
    """The layer's name, or the function."""
    args: Any
    """Its arguments, positional and by name; tensors are ``Value``."""
    reads: tuple[int, ...]
    """Numbers of the tensors that it takes."""
    writes: tuple[int, ...]
    """Numbers of the tensors that it returns, in the order of ``tensors_in``."""


class Recording(NamedTuple):
    """The steps from a network's inputs, tensors 0, 1, ..., to its output."""

    steps: tuple[Step, ...]
    output: int
    """Number of the tensor that the network returns; the last step writes it."""
    first_axes: tuple[tuple[int, ...], ...]
    """Of each tensor: the length of its first axis in each pass, or nothing if it has none."""

    def is_by_rows(self, number: int) -> bool:
        """Whether a tensor's first axis is the rows."""
        return len(set(self.first_axes[number])) > 1


def record(network: nn.Module, inputs: Callable[[int], Sequence[Tensor]]) -> Recording:
    """Record the steps of a network.

    Args:
        network: On the meta device, with its layers exchanged.
        inputs: Its inputs for a number of rows, on the meta device.
    Raises:
        NotCuttable: with the reason.
    """
    first, other, evaluated = (_recorded(network, inputs(rows), training=training)
                               for rows, training in ((ROWS[0], True), (ROWS[1], True), (ROWS[0], False)))
    if first != evaluated:
        raise NotCuttable("it computes otherwise in training than in evaluation")
    if [step.call for step in first.steps] != [step.call for step in other.steps]:
        raise NotCuttable("its steps depend on the number of rows")
    merged = (replace(step, args=_merged(step.args, with_more.args)) for step, with_more in zip(first.steps, other.steps, strict=True))
    axes = tuple(one + more for one, more in zip(first.first_axes, other.first_axes, strict=True))
    return Recording(tuple(merged), first.output, axes)


def layers(network: nn.Module) -> dict[str, nn.Module]:
    """The modules that are called as a whole: elements of a sequence or a list, and modules that hold none of these."""
    return dict(_layers(network, "", element=False))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists, mappings and slices, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)


def mapped(value: Any, fn: Callable[[Any], Any]) -> Any:
    """Nested arguments with ``fn`` applied to what they hold."""
    if isinstance(value, slice):
        return slice(*(mapped(each, fn) for each in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {key: mapped(each, fn) for key, each in value.items()}
    if isinstance(value, list):
        return [mapped(each, fn) for each in value]
    return tuple(mapped(each, fn) for each in value) if isinstance(value, tuple) else fn(value)


def leaves(value: Any) -> list[Any]:
    """What nested arguments hold."""
    found: list[Any] = []
    mapped(value, found.append)
    return found


def _layers(module: nn.Module, path: str, *, element: bool) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        inner = f"{path}.{name}".lstrip(".")
        if _is_whole(child, element=element or isinstance(module, nn.Sequential)):
            yield inner, child
        else:
            yield from _layers(child, inner, element=isinstance(child, nn.ModuleList | nn.ModuleDict))


def _is_whole(module: nn.Module, *, element: bool) -> bool:
    if isinstance(module, nn.ModuleList | nn.ModuleDict) and type(module).forward in (nn.ModuleList.forward, nn.ModuleDict.forward):
        return False
    if isinstance(module, nn.Sequential):  # of layers: taken apart; convolution, normalisation and activation in one: not
        return element and not any(True for child in module for _ in child.children())
    return element or not any(isinstance(inner, nn.Sequential | nn.ModuleList | nn.ModuleDict) for inner in module.modules())


def _recorded(network: nn.Module, inputs: Sequence[Tensor], *, training: bool) -> Recording:
    recorder = _Recorder(inputs)
    whole = layers(network)
    was_training = network.training
    network.train(training)
    for path, layer in whole.items():
        layer.forward = partial(recorder.call_layer, path, layer.forward)
    try:
        with seeded_dropout([network], torch.zeros(len(inputs[0]), dtype=torch.int64, device="meta"), calls=(0,)), recorder:
            output = network(*inputs)
        return recorder.steps_to(logits_in(output))
    finally:
        for layer in whole.values():
            del layer.forward
        network.train(was_training)


def logits_in(output: Any) -> Tensor:
    """The one tensor that a network returns, or the ``logits`` among several by name (transformers).

    Raises:
        NotCuttable: it returns something else.
    """
    found = output.get("logits") if isinstance(output, Mapping) else output
    if not isinstance(found, Tensor):
        raise NotCuttable(f"it returns a {type(output).__name__}")
    return found


class _Recorder(TorchFunctionMode):
    """Notes calls while it is entered. Tensors are known by their identity, so all of them are kept until the end."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self._kept = list(inputs)
        self._numbers = {id(tensor): number for number, tensor in enumerate(inputs)}
        self._steps: list[Step] = []
        self._in_layer = False

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return func(*args, **(kwargs or {})) if self._in_layer else self._noted(func, func, args, kwargs or {})

    def call_layer(self, path: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a layer, whose inside is not recorded."""
        if self._in_layer:  # a layer that calls another one
            return forward(*args, **kwargs)
        self._in_layer = True
        try:
            return self._noted(path, forward, args, kwargs)
        finally:
            self._in_layer = False

    def steps_to(self, output: Tensor) -> Recording:
        """The steps that the output needs."""
        number = self._numbers.get(id(output), -1)
        needed, steps = {number}, []
        for step in reversed(self._steps):
            if needed & set(step.writes):
                steps.append(step)
                needed |= set(step.reads)
        if not steps:
            raise NotCuttable("its output is that of no layer")
        return Recording(tuple(steps[::-1]), number, tuple(tuple(tensor.shape[:1]) for tensor in self._kept))

    def _noted(self, call: str | Callable[..., Any], run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        taken = list(tensors_in((args, kwargs)))
        versions = [tensor._version for tensor in taken]  # noqa: SLF001 - changes in place are counted there
        result = run(*args, **kwargs)
        if any(result is tensor for tensor in taken):  # dropout that drops nothing: its result is another tensor all the same
            result = result.view_as(result)
        made = list(tensors_in(result))
        if versions != [tensor._version for tensor in taken]:  # noqa: SLF001 - the same
            raise NotCuttable(f"{_name(call)} changes a tensor in place")
        if made:
            arguments = mapped((args, dict(kwargs)), partial(self._argument, call))
            reads = tuple(self._numbers[id(tensor)] for tensor in taken)
            self._steps.append(Step(call, arguments, reads, tuple(self._number(tensor) for tensor in made)))
        return result

    def _number(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        self._numbers[id(tensor)] = number = len(self._kept) - 1
        return number

    def _argument(self, call: str | Callable[..., Any], value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self._numbers:
                raise NotCuttable(f"{_name(call)} takes a parameter or a constant that belongs to no layer")
            return Value(self._numbers[id(value)])
        if not isinstance(value, _PLAIN):
            raise NotCuttable(f"{_name(call)} takes a {type(value).__name__}")
        if isinstance(value, torch.dtype) and value.is_floating_point:
            raise NotCuttable(f"{_name(call)} asks for {value}, whatever the precision")
        return value


def _name(call: str | Callable[..., Any]) -> str:
    return call if isinstance(call, str) else getattr(call, "__name__", repr(call))


def _merged(one: Any, other: Any) -> Any:
    """The arguments of a call with 2 rows, and ``Rows`` where those with 3 rows differ."""
    others = iter(leaves(other))
    return mapped(one, lambda value: _same_or_rows(value, next(others, None)))


def _same_or_rows(one: Any, other: Any) -> Any:
    if one == other and type(one) is type(other):
        return one
    if isinstance(one, int) and isinstance(other, int) and one % ROWS[0] == 0 and other == one // ROWS[0] * ROWS[1]:
        return Rows(one // ROWS[0])
    raise NotCuttable(f"its steps take {one} for {ROWS[0]} rows and {other} for {ROWS[1]}")
