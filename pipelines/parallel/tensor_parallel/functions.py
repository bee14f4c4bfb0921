"""The functions f and g between whole and sharded tensors; each is the other's backward pass.

Horovod's own differentiable operations are unsuitable: their backward passes have no names, so they hang on ranks with different
histories, and they sum a gradient that all shards already hold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from sparkring.pipelines.parallel.collectives.sets import SetReducer


class _ToShards(Function):
    """f: identity forward, sum backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, reducer: SetReducer, name: str) -> Tensor:
        ctx.reducer, ctx.name = reducer, name
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _summed(grads[0], ctx.reducer, f"{ctx.name}.backward"), None, None


class _SumOfShards(Function):
    """g: sum forward, identity backward."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, reducer: SetReducer, name: str) -> Tensor:
        return _summed(x, reducer, f"{name}.forward")

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0], None, None


def to_shards(x: Tensor, reducer: SetReducer, name: str) -> Tensor:
    """Apply f: pass a tensor that all shards hold to sharded layers; their gradients are summed.

    Args:
        x: The tensor, the same on all shards.
        reducer: Sums over the shards.
        name: Name of the layer; it names the sum.
    """
    result: Tensor = _ToShards.apply(x, reducer, name)
    return result


def sum_of_shards(x: Tensor, reducer: SetReducer, name: str) -> Tensor:
    """Apply g: sum each shard's part of a tensor; all shards then hold the sum.

    Args:
        x: This shard's part, in the sum's shape.
        reducer: Sums over the shards.
        name: Name of the layer; it names the sum.
    """
    result: Tensor = _SumOfShards.apply(x, reducer, name)
    return result


def _summed(tensor: Tensor, reducer: SetReducer, name: str) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)  # autograd may still hold the tensor itself
    reducer.sum_(total, name)
    return total
