"""Inputs of a chunk as leaves of its own autograd graph, which its blocks may overwrite nevertheless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.autograd import Function

from sparkring.models.blocks import has_gradient


def leaf(tensor: Tensor) -> Tensor:
    """A tensor that came over a border, as a leaf of this chunk's graph."""
    return tensor.detach().requires_grad_(has_gradient(tensor))


class _Arrival(Function):
    """Gives a leaf's memory as a tensor that is no leaf: autograd lets no operation overwrite leaves."""

    @staticmethod
    def forward(_ctx: Any, leaf: Tensor) -> Tensor:
        return leaf.detach()

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def overwritable(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs as tensors that a block may overwrite; gradients reach the leaves."""
    return {name: _Arrival.apply(tensor) if tensor.requires_grad else tensor
            for name, tensor in inputs.items()}
