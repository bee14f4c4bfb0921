"""The two functions between whole and cut tensors, each the other's backward pass.

Horovod's own differentiable operations will not do: their backward passes have no names, so they wait for ever on ranks
that have done different things before, and they sum a gradient that all shards hold already.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from sparkring.pipelines.parallel.collectives.sets import SetReducer


class _ToShards(Function):
    """f."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, reducer: SetReducer, name: str) -> Tensor:
        ctx.reducer, ctx.name = reducer, name
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _summed(grads[0], ctx.reducer, f"{ctx.name}.backward"), None, None


class _SumOfShards(Function):
    """g."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, reducer: SetReducer, name: str) -> Tensor:
        return _summed(x, reducer, f"{name}.forward")

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0], None, None


def to_shards(x: Tensor, reducer: SetReducer, name: str) -> Tensor:
    """f: hand a tensor that all shards hold to layers of which each shard holds a slice; their gradients are summed.

    Args:
        x: The same on all shards.
        reducer: Over the shards.
        name: Of the layer, for the sum's name.
    """
    result: Tensor = _ToShards.apply(x, reducer, name)  # type: ignore[no-untyped-call]
    return result


def sum_of_shards(x: Tensor, reducer: SetReducer, name: str) -> Tensor:
    """g: the sum of each shard's part of a tensor, which then all shards hold.

    Args:
        x: This shard's part, of the sum's shape.
        reducer: Over the shards.
        name: Of the layer, for the sum's name.
    """
    result: Tensor = _SumOfShards.apply(x, reducer, name)  # type: ignore[no-untyped-call]
    return result


def _summed(tensor: Tensor, reducer: SetReducer, name: str) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)  # autograd may still hold the tensor itself
    reducer.sum_(total, name)
    return total
