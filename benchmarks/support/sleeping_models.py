"""Networks for benchmarks on few cores: passes sleep, so ranks do not take each other's time; parameters and tensors are real.

    row -> [ layer ] -> [ layer ] -> ...         x (rows, width) * weight (width) + mean of ballast (parameters)

A layer sleeps for its rows in the forward pass, for the gradient of its input and for those of its weights. Its ballast is as large as the
parameters of a real layer: it is read, gets gradients, is summed over replicas and updated.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from sparkring.models.blocks import Block, BlockList, X

CALL_S = 2e-4
"""Of a pass, whatever its rows."""
_SET_TIMER_SLACK = 29
"""prctl's number for how late the system may wake a sleeper."""


@dataclass(frozen=True)
class LayerShape:
    """A layer's time and sizes."""

    share: float
    """Of the network's seconds."""
    parameters: int
    """Elements of its ballast."""
    width: int
    """Elements of a row that it puts out; a divisor of the width before."""


def _even(count: int, *, parameters: int, width: int) -> tuple[LayerShape, ...]:
    return (LayerShape(1, parameters, width),) * count


NETWORKS: Mapping[str, tuple[LayerShape, ...]] = {
    "even": _even(8, parameters=1 << 14, width=1 << 12),
    "rising": tuple(LayerShape(share, 1 << 15, 1 << 11) for share in (1, 2, 3, 4, 5, 6)),
    "convolutions": (LayerShape(6, 1 << 10, 1 << 15), LayerShape(5, 1 << 12, 1 << 14), LayerShape(4, 1 << 13, 1 << 13),
                     LayerShape(3, 1 << 15, 1 << 12), LayerShape(1, 1 << 18, 1 << 10), LayerShape(1, 1 << 18, 1 << 10)),
    "embedding": (LayerShape(1, 1 << 20, 1 << 11), *(LayerShape(3, 1 << 14, 1 << 11) for _ in range(5))),
    "heavy": _even(5, parameters=1 << 18, width=1 << 10),
}
"""Equal layers; ever slower ones; wide slow ones before narrow ones of many parameters; one of many parameters in front; many in all."""


def network(name: str, *, row_s: float) -> BlockList:
    """A network.

    Args:
        name: One of ``NETWORKS``.
        row_s: Seconds in which one rank takes a row through all passes.
    """
    shapes = NETWORKS[name]
    total = sum(shape.share for shape in shapes)
    names = [f"layer{number}" for number in range(len(shapes))]
    return BlockList(tuple(Block(layer, {layer: partial(SleepingLayer, shape, pass_s=row_s / 3 * shape.share / total)})
                           for layer, shape in zip(names, shapes, strict=True)), inputs=(X,), outputs=(X,))


def rows_of(name: str, rows: int, *, device: str = "cpu") -> dict[str, Tensor]:
    """What a network takes."""
    return {X: torch.ones(rows, NETWORKS[name][0].width, device=device)}


def wake_on_time() -> None:
    """Let the system wake this thread within a microsecond of what it asked for; the default is fifty."""
    ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1000)


class SleepingLayer(nn.Module):
    """Sleeps, and multiplies."""

    def __init__(self, shape: LayerShape, *, pass_s: float) -> None:
        """Sleep ``pass_s`` a row in each of the three passes."""
        super().__init__()
        self._width, self._pass_s = shape.width, pass_s
        self.weight = nn.Parameter(torch.ones(shape.width))
        self.ballast = nn.Parameter(torch.zeros(shape.parameters))

    def forward(self, x_RV: Tensor) -> Tensor:
        """(rows, as many or more) -> (rows, width)."""
        seconds = CALL_S + len(x_RV) * self._pass_s
        x_RV = _sleep(x_RV, seconds, seconds)
        weight_W = _sleep(self.weight, 0.0, seconds)
        x_RW = x_RV if x_RV.shape[1] == self._width else x_RV.unflatten(1, (self._width, -1)).mean(dim=2)
        return x_RW * weight_W + self.ballast.mean()


class _Sleep(Function):
    """Hands a tensor on after a while, and its gradient after another."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, forward_s: float, backward_s: float) -> Tensor:
        time.sleep(forward_s)
        ctx.backward_s = backward_s
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return grads[0], None, None


def _sleep(tensor: Tensor, forward_s: float, backward_s: float) -> Tensor:
    result: Tensor = _Sleep.apply(tensor, forward_s, backward_s)
    return result
