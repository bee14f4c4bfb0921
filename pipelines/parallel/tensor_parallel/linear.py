"""Linear layers of which a shard holds some outputs (column) or some inputs (row), sliced from whole layers.

    column   y_o = f(x) @ W_o.T + b_o        each shard has outputs o, and the whole input
    row      y = g(x_i @ W_i.T) + b          each shard has inputs i, and the whole output
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

from sparkring.pipelines.parallel.collectives.sets import SetReducer
from sparkring.pipelines.parallel.tensor_parallel.functions import sum_of_shards, to_shards
from sparkring.pipelines.parallel.tensor_parallel.shard_spec import ShardSpec


class ShardedModule(nn.Module):
    """A module with parameters of which this rank holds a slice."""

    splits: Mapping[str, ShardSpec]
    """The cuts of its sharded parameters, by name."""


class ColumnLinear(ShardedModule):
    """Some outputs of a linear layer."""

    def __init__(self, whole: nn.Linear, reducer: SetReducer, *, name: str, outputs: ShardSpec) -> None:
        """Take this shard's outputs.

        Args:
            whole: The whole layer; it is not kept.
            reducer: Sums over the shards.
            name: Its name in the whole model.
            outputs: The cut of the outputs, along dimension 0.
        """
        super().__init__()
        self._reducer, self._name = reducer, name
        self.weight = _slice(whole.weight, outputs, reducer)
        self.bias = _slice_if_any(whole.bias, outputs, reducer)
        self.splits = {"weight": outputs} | ({} if self.bias is None else {"bias": outputs})

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., own outputs) for the whole ``x`` (..., inputs)."""
        return functional.linear(to_shards(x, self._reducer, self._name), self.weight, self.bias)


class RowLinear(ShardedModule):
    """Some inputs of a linear layer; the bias is held by all shards."""

    def __init__(self, whole: nn.Linear, reducer: SetReducer, *, name: str, inputs: ShardSpec) -> None:
        """Take this shard's inputs; arguments as in ``ColumnLinear``, with ``inputs`` along dimension 1."""
        super().__init__()
        self._reducer, self._name = reducer, name
        self.splits = {"weight": inputs}
        self.weight = _slice(whole.weight, inputs, reducer)
        self.bias: nn.Parameter | None = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return the whole (..., outputs) for ``x`` (..., own inputs)."""
        total = sum_of_shards(functional.linear(x, self.weight), self._reducer, self._name)
        return total if self.bias is None else total + self.bias


def _slice_if_any(whole: Tensor | None, split: ShardSpec, reducer: SetReducer) -> nn.Parameter | None:
    return None if whole is None else _slice(whole, split, reducer)


def _slice(whole: Tensor, split: ShardSpec, reducer: SetReducer) -> nn.Parameter:
    return nn.Parameter(split.take(whole.detach(), reducer.index))
