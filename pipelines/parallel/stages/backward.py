"""The backward pass of a chunk in two halves: gradients of the inputs first, those of the weights later.

    whole    backward(outputs, gradients)          one pass through the graph
    halves   input gradients                       the pass that the previous stage waits for; it stops at every layer's output
             weight gradients                      layer by layer, whenever the schedule has time

A layer is a module that itself holds parameters. Its output is noted in the forward pass. The gradient of that output suffices for
the layer's weights if all of their uses lie between that output and the outputs noted before it. Parameters with other uses (by
two layers, twice by one, before inner layers of their module, or outside of it) get their gradient in the first half, by one pass
over all uses.
Source: Qi et al., "Zero bubble pipeline parallelism", ICLR 2024 (the halves). Imports no horovod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node


@dataclass
class LayerOutputs:
    """Outputs of a chunk's layers in one forward pass."""

    found: list[tuple[nn.Module, Tensor]] = field(default_factory=list)


@dataclass
class PendingWeightGradients:
    """The second half of a backward pass."""

    layers: list[tuple[Tensor, Tensor, list[nn.Parameter]]]
    """Each layer's output, the output's gradient, and the layer's parameters."""
    done: list[tuple[nn.Parameter, Tensor]]
    """Gradients that the first half has computed already."""


class SplitBackward:
    """Backward passes in two halves for one chunk."""

    def __init__(self, module: nn.Module) -> None:
        """Hook the module's layers, so that forward passes note their outputs."""
        self._module = module
        self._noted: LayerOutputs | None = None
        self._apart: set[nn.Parameter] | None = None
        """Parameters with uses beyond their layers' outputs; found at the first backward pass."""
        for layer in module.modules():
            if any(parameter.requires_grad for parameter in layer.parameters(recurse=False)):
                layer.register_forward_hook(self._note)

    def forward(self, run: Callable[[], dict[str, Tensor]]) -> tuple[dict[str, Tensor], LayerOutputs]:
        """Run a forward pass; return its outputs and those of its layers."""
        self._noted = noted = LayerOutputs()
        try:
            return run(), noted
        finally:
            self._noted = None

    def input_gradients(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], inputs: Sequence[Tensor],
                        noted: LayerOutputs) -> tuple[list[Tensor | None], PendingWeightGradients]:
        """Run the first half.

        Args:
            outputs: The chunk's outputs that need a gradient, or its loss.
            gradients: The gradient of each output; None for a loss.
            inputs: The chunk's inputs that need a gradient.
            noted: The layers' outputs from the forward pass.
        Returns:
            The gradient of each input (None: it was not used), and the second half.
        """
        if self._apart is None:
            self._apart = self._with_other_uses(outputs, noted)
        layers = [(layer, output) for layer, output in noted.found if not self._apart.issuperset(_own(layer))]
        apart = list(self._apart)
        wanted: list[Tensor] = [*inputs, *(output for _, output in layers), *apart]
        found: Sequence[Any] = torch.autograd.grad(outputs, wanted, gradients, retain_graph=True, allow_unused=True) if wanted else []
        first_layer, first_apart = len(inputs), len(inputs) + len(layers)
        of_inputs, of_layers, of_apart = found[:first_layer], found[first_layer:first_apart], found[first_apart:]
        left = [(output, gradient, [parameter for parameter in _own(layer) if parameter not in self._apart])
                for (layer, output), gradient in zip(layers, of_layers, strict=True) if gradient is not None]
        done = [(parameter, gradient) for parameter, gradient in zip(apart, of_apart, strict=True) if gradient is not None]
        return list(of_inputs), PendingWeightGradients(left, done)

    def _note(self, layer: nn.Module, _inputs: object, output: object) -> None:
        if self._noted is not None and isinstance(output, Tensor) and output.requires_grad:
            self._noted.found.append((layer, output))

    def _with_other_uses(self, outputs: Sequence[Tensor], noted: LayerOutputs) -> set[nn.Parameter]:
        """Parameters with several uses, or with one that is not between their layer's output and those noted before it."""
        stops = {output.grad_fn for _, output in noted.found}
        found = set(_reached((output.grad_fn for output in outputs), stops))
        uses: Counter[nn.Parameter] = Counter()
        for layer, output in noted.found:
            behind = set(_reached((node for node, _ in output.grad_fn.next_functions), stops)) if output.grad_fn else set()
            found |= behind.difference(_own(layer))
            uses.update(behind)
        found.update(parameter for parameter, count in uses.items() if count > 1)
        return found.intersection(self._module.parameters())


def weight_gradients(work: PendingWeightGradients) -> None:
    """Run the second half: add to every parameter's ``grad``, so that hooks on accumulated gradients run as in a whole pass."""
    for output, gradient, parameters in work.layers:
        torch.autograd.backward([output], [gradient], inputs=parameters)
    for parameter, gradient in work.done:
        torch.autograd.backward([parameter], [gradient])
    work.layers.clear()
    work.done.clear()


def _own(layer: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]


def _reached(starts: Iterable[Node | None], stops: set[Node | None]) -> Iterator[nn.Parameter]:
    """Parameters that can be reached from ``starts`` in the graph without passing a node of ``stops``."""
    waiting = [node for node in starts if node is not None]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen or node in stops:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter):
            yield leaf
        waiting += [following for following, _ in node.next_functions if following is not None]
