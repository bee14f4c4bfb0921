"""Losses summed over rows; who divides by how many is the training step's affair, not the loss's."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def log_loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over rows of the binary cross entropy, in nats.

    Args:
        logits: (rows,) log odds of label 1.
        labels: (rows,) 0 or 1, of the logits' type.
    Returns:
        A scalar; 0 for no rows.
    """
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
