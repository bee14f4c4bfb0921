"""A micro-batch of no rows in a network that was not written for one: ``x.view(len(x), -1)`` fails on it.

The block runs on one row of zeros, in evaluation, so that no statistics change; then the row is cut off. What is left
has the shapes and the gradient (zeros) of no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def has_none(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors that a block reads are those of a micro-batch without rows."""
    return any(tensor.dim() > 0 and tensor.shape[0] == 0 for tensor in tensors)  # len() would fix the rows of an exported model


def of_any(run: Callable[..., list[Tensor]], parts: Sequence[nn.Module], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Run a block for any number of rows: as it is, or as ``of_none`` if it fails for no rows.

    Args:
        run: As of ``of_none``; each tensor that it returns has the rows as its first axis.
        parts: Its modules.
        tensors: What it reads.
    """
    try:
        return run(parts, *tensors)
    except Exception:
        if not has_none(tensors):
            raise
        return of_none(run, parts, tensors, by_rows=[True])


def of_none(run: Callable[..., list[Tensor]], parts: Sequence[nn.Module], tensors: Sequence[Tensor], *,
            by_rows: Sequence[bool]) -> list[Tensor]:
    """Run a block for no rows.

    Args:
        run: ``run(parts, *tensors)`` returns the block's tensors.
        parts: Its modules.
        tensors: What it reads; those of the rows have a first axis of 0.
        by_rows: For each tensor that it returns, whether its first axis is the rows.
    """
    training = [part.training for part in parts]
    for part in parts:
        part.eval()
    try:
        made = run(parts, *(_with_a_row(tensor) for tensor in tensors))
    finally:
        for part, was in zip(parts, training, strict=True):
            part.train(was)
    return [tensor[:0] if cut else tensor for tensor, cut in zip(made, by_rows, strict=True)]


def _with_a_row(tensor: Tensor) -> Tensor:
    return tensor if not has_none([tensor]) else torch.cat([tensor, tensor.new_zeros(1, *tensor.shape[1:])])
