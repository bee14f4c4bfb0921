"""Batch normalisation for training in micro-batches: the result does not depend on which rank runs which micro-batch.

    in a micro-batch    values are normalised by the mean and variance of its rows, as in serial training
    over a step         sums over all micro-batches and replicas update the running statistics once

So the running statistics are those of the global batch, not of a rank's last micro-batch. A forward pass without
gradients (the first of two with activation checkpointing) adds nothing to the sums, so each micro-batch counts once.
Source: Ioffe and Szegedy, "Batch normalization", ICML 2015; the running statistics of a whole mini-batch as in Kim et al.,
"torchgpipe", 2020, section 3.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkring.models.blocks import BlockList


class StepBatchNorm(nn.Module):
    """Normalises (B, C, ...) over all axes but the channels. Its state has the names of torch's ``BatchNorm2d``."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, channels: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))
        self.sums = torch.zeros(2 * channels + 1, dtype=torch.float64)
        """Sums on this rank in this step: of a channel's values, of their squares, and the number of its values."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the input's shape."""
        if not self.training:
            return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        if not len(x):
            return x  # a micro-batch of no rows
        if torch.is_grad_enabled():
            self._count(x.detach())
        if x.numel() == x.shape[1]:  # one value per channel is its own mean: the bias remains, but torch refuses it
            weight, bias = (parameter.view(-1, *(1,) * (x.dim() - 2)) for parameter in (self.weight, self.bias))
            return (x - x) * weight + bias
        return functional.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)

    def finish_step(self, count: float) -> None:
        """Update the running statistics from ``sums``, then clear ``sums``; ``count``: its last number, read by the caller."""
        if count > 1:
            total, squares = self.sums[:-1].chunk(2)
            mean = total / count
            variance = (squares - total * mean) / (count - 1)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)
            self.num_batches_tracked += 1
        self.sums.zero_()

    def forget_step(self) -> None:
        """Clear ``sums`` after a step that is not taken."""
        self.sums.zero_()

    def _count(self, x: Tensor) -> None:
        values = x.transpose(0, 1).flatten(1).double()  # (B, C, ...) -> (C, values)
        self.sums += torch.cat([values.sum(dim=1), values.square().sum(dim=1), values.new_full((1,), values.shape[1])])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's signature
        """Move ``sums`` along to another device, never to another type. They are empty between steps."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.sums = torch.zeros_like(self.sums, device=self.running_mean.device)
        return self


def finish_steps(modules: Iterable[nn.Module], sum_over_replicas: Callable[[Tensor], None]) -> None:
    """Update the running statistics of all batch normalisations in some modules.

    Args:
        modules: This rank's parts of a model.
        sum_over_replicas: Sums a float64 tensor over the replicas of these parts, in place.
    """
    norms = _norms(modules)
    if norms:
        everything = torch.cat([norm.sums for norm in norms])
        sum_over_replicas(everything)
        parts = everything.split([len(norm.sums) for norm in norms])
        counts = torch.stack([part[-1] for part in parts]).tolist()  # all at once: it waits for the device
        for norm, sums, count in zip(norms, parts, counts, strict=True):
            norm.sums.copy_(sums)
            norm.finish_step(count)


def normalises_rows(blocks: BlockList) -> bool:
    """Whether a model has such a layer; takes no memory."""
    with torch.device("meta"), torch.random.fork_rng(devices=()):
        return bool(_norms(factory() for block in blocks for factory in block.parts.values()))


def forget_steps(modules: Iterable[nn.Module]) -> None:
    """Discard the sums of a step that is not taken because its loss or a gradient was not finite."""
    for norm in _norms(modules):
        norm.forget_step()


def _norms(modules: Iterable[nn.Module]) -> list[StepBatchNorm]:
    found = (norm for module in modules for norm in module.modules() if isinstance(norm, StepBatchNorm))
    return list(dict.fromkeys(found))  # a layer may be in several chunks of a stage
