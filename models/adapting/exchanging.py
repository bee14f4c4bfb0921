"""Layers that would differ between ranks, exchanged for exact ones of the same parameters; and the row seeds of dropout.

    torch.nn.BatchNorm1d/2d/3d, timm's BatchNormAct2d   StepBatchNorm
    torch.nn.Dropout, where it drops                    RowDropout, with the module's name as its place
    inplace=True                                        inplace=False, so that a block leaves its inputs as they are

All other layers stay. What cannot be exchanged is refused by ``checking.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sparkring.errors import ConfigError
from sparkring.models.batch_norm import StepBatchNorm
from sparkring.models.dropout import RowDropout

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class ActivatedStepBatchNorm(StepBatchNorm):
    """Normalises, then applies the activation that came with the layer."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the input's shape."""
        activated: Tensor = self.act(self.drop(super().forward(x)))
        return activated


class CalledDropout(RowDropout):
    """Drops by row in a network that calls its dropout with one tensor. ``seeded`` brings the seeds."""

    def __init__(self, p: float, *, place: str) -> None:
        super().__init__(p, place=place)
        self.row_seeds_B: Tensor | None = None
        self.call = 0
        """Number of the next call within a forward pass; each call is a place of its own, so that no two share a mask."""

    def forward(self, x: Tensor, row_seeds_B: Tensor | None = None) -> Tensor:
        """Return a tensor of the shape of ``x``."""
        seeds_B = self.row_seeds_B if row_seeds_B is None else row_seeds_B
        if self.training and self.p and seeds_B is not None and len(x) != len(seeds_B):
            raise ConfigError(f"{self.place} drops elements of a tensor of shape {tuple(x.shape)} in a batch of {len(seeds_B)} rows, so "
                              "they belong to no row; set its dropout to 0.")
        call, self.call = self.call, self.call + 1
        if not call:
            return super().forward(x, seeds_B)
        again: Tensor = RowDropout(self.p, place=f"{self.place}#{call}").train(self.training)(x, seeds_B)
        return again


@contextmanager
def seeded_dropout(parts: Sequence[nn.Module], row_seeds_B: Tensor | None, *, calls: Sequence[int]) -> Iterator[None]:
    """Bring the rows' seeds to the dropout inside modules; ``calls``: how often each was called before, in earlier blocks."""
    layers = [(layer, before) for part, before in zip(parts, calls, strict=True) for layer in part.modules()
              if isinstance(layer, CalledDropout)]
    for layer, before in layers:
        layer.row_seeds_B, layer.call = row_seeds_B, before
    try:
        yield
    finally:
        for layer, _ in layers:
            layer.row_seeds_B = None


def exchanged(module: nn.Module, path: str, *, dropout: float) -> nn.Module:
    """Exchange a network's layers, or those of its part ``path``.

    Args:
        module: Changed in place, unless it is itself such a layer.
        path: Its name in the whole network.
        dropout: Share that each ``torch.nn.Dropout`` drops, in place of its own; those of 0 keep dropping nothing.
    Returns:
        The module, or the layer in its place.
    """
    if getattr(module, "inplace", False) is True:
        module.__dict__["inplace"] = False
    for name, child in list(module.named_children()):
        setattr(module, name, exchanged(child, f"{path}.{name}".lstrip("."), dropout=dropout))
    if type(module) is nn.Dropout:
        return CalledDropout(dropout if module.p else 0.0, place=path).train(module.training)
    activated = _is_activated(module)
    if (type(module) in _BATCH_NORMS or activated) and _is_usual(module):
        return _step_batch_norm(module, ActivatedStepBatchNorm if activated else StepBatchNorm)
    return module


def _is_usual(norm: nn.Module) -> bool:
    """Whether StepBatchNorm computes the same: it has weights, running statistics, and a momentum."""
    return bool(norm.affine and norm.track_running_stats and norm.momentum is not None)


def _is_activated(module: nn.Module) -> bool:
    """Whether it is timm's batch normalisation with an activation; timm is not imported for this."""
    return type(module).__name__ == "BatchNormAct2d" and type(module).__module__.startswith("timm.")


def _step_batch_norm(norm: nn.Module, kind: type[StepBatchNorm]) -> StepBatchNorm:
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)  # noqa: SLF001 - torch has no public name for all of them
    assert norm.momentum is not None
    made = kind(norm.num_features, eps=norm.eps, momentum=norm.momentum)
    made.weight, made.bias = norm.weight, norm.bias
    for name, buffer in norm.named_buffers(recurse=False):
        made.register_buffer(name, buffer)
    if isinstance(made, ActivatedStepBatchNorm):
        made.drop, made.act = norm.get_submodule("drop"), norm.get_submodule("act")
    made.sums = torch.zeros_like(made.sums, device=norm.running_mean.device if norm.running_mean is not None else None)
    return made.train(norm.training)
