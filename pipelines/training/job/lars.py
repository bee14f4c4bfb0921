"""LARS: the learning rate of each layer in proportion to its weights' norm over its gradient's, for large batches.

    local rate    trust * |w| / (|g| + decay * |w|)         of a layer's matrix w with gradient g
    v = momentum * v + lr * local rate * (g + decay * w),   w = w - v

Biases and the weights of norms (one dimension) move by plain momentum, without decay: their norms say nothing about a layer.
Source: You, Gitman, Ginsburg, "Large batch training of convolutional networks", 2017, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

BUFFER = "momentum_buffer"


class Lars(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling."""

    def __init__(self, params: Iterable[Any], *, lr: float, momentum: float, weight_decay: float, trust: float) -> None:
        """Take parameters or groups of them; the arguments are those of the formula above."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure is called here
        """Update all parameters that have a gradient."""
        assert closure is None, "gradients come from the ring"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        change = parameter.grad
        if parameter.dim() > 1:
            change = change.add(parameter, alpha=group["weight_decay"]) * self._local_rate(parameter, parameter.grad, group)
        state = self.state[parameter]
        if BUFFER not in state:
            state[BUFFER] = torch.zeros_like(parameter)
        parameter.sub_(state[BUFFER].mul_(group["momentum"]).add_(change, alpha=group["lr"]))

    @staticmethod
    def _local_rate(weights: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """1 where a norm is 0, as in a layer that begins with zeros."""
        w, g = torch.linalg.vector_norm(weights), torch.linalg.vector_norm(gradient)
        rate = group["trust"] * w / (g + group["weight_decay"] * w)
        return torch.where((w > 0) & (g > 0), rate, torch.ones_like(rate))
