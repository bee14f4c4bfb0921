"""The backward pass of a chunk, whole or in its two halves: gradients of the inputs first, those of the weights later.

    whole    backward(outputs, gradients)          one pass through the graph
    halves   input gradients                       the pass that the previous stage waits for: it stops at every layer's output
             weight gradients                      each layer by itself, whenever the schedule has time for it

A layer is a module that holds parameters itself. Its output is noted in the forward pass; with the gradient of that output the
layer's weights need nothing else, as long as all of their uses lie between that output and the outputs noted before it. Parameters
that are also used otherwise (by two layers, twice by one, before inner layers of their module, or outside of it) get their gradient
with the first half, by one pass over all their uses.
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
    """What the layers of a chunk gave in one forward pass."""

    found: list[tuple[nn.Module, Tensor]] = field(default_factory=list)


@dataclass
class PendingWeightGradients:
    """What is left of a backward pass after its first half."""

    layers: list[tuple[Tensor, Tensor, list[nn.Parameter]]]
    """Output of a layer, its gradient, the layer's parameters."""
    done: list[tuple[nn.Parameter, Tensor]]
    """Gradients that the first half gave already."""


class SplitBackward:
    """Backward passes in two halves for one chunk."""

    def __init__(self, module: nn.Module) -> None:
        """Note the outputs of the module's layers from now on."""
        self._module = module
        self._noted: LayerOutputs | None = None
        self._apart: set[nn.Parameter] | None = None
        """Parameters that their layers' outputs do not account for; found at the first backward pass."""
        for layer in module.modules():
            if any(parameter.requires_grad for parameter in layer.parameters(recurse=False)):
                layer.register_forward_hook(self._note)

    def forward(self, run: Callable[[], dict[str, Tensor]]) -> tuple[dict[str, Tensor], LayerOutputs]:
        """Run a forward pass; returns its outputs and what the layers gave."""
        self._noted = noted = LayerOutputs()
        try:
            return run(), noted
        finally:
            self._noted = None

    def input_gradients(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], inputs: Sequence[Tensor],
                        noted: LayerOutputs) -> tuple[list[Tensor | None], PendingWeightGradients]:
        """The first half.

        Args:
            outputs: Of the chunk, that need a gradient; or its loss.
            gradients: Of each of them; None for a loss.
            inputs: Of the chunk, that need a gradient.
            noted: Of the forward pass.
        Returns:
            The gradient of each input (None: it was not used), and what the second half needs.
        """
        if self._apart is None:
            self._apart = self._accounted_otherwise(outputs, noted)
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

    def _accounted_otherwise(self, outputs: Sequence[Tensor], noted: LayerOutputs) -> set[nn.Parameter]:
        """Parameters with a use that is not between an output of their own layer and those noted before it, or with several."""
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
    """The second half: add to every parameter's ``grad``, so that hooks on accumulated gradients run as in a whole pass."""
    for output, gradient, parameters in work.layers:
        torch.autograd.backward([output], [gradient], inputs=parameters)
    for parameter, gradient in work.done:
        torch.autograd.backward([parameter], [gradient])
    work.layers.clear()
    work.done.clear()


def _own(layer: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]


def _reached(starts: Iterable[Node | None], stops: set[Node | None]) -> Iterator[nn.Parameter]:
    """Leaves of the graph that can be reached from ``starts`` without coming to a node of ``stops``."""
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
