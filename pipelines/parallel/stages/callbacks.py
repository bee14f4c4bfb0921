"""The part of a step that the executor leaves to its caller: batches, losses, sums and the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

Tensors = Mapping[str, Tensor]
RowsOf = Callable[[int], int]
"""Rows of a micro-batch, the same on all ranks. Unless shapes are dynamic, messages of equally many rows have equal shapes."""


class StepCallbacks(Protocol):
    """The callbacks of the executor during one step; one object per step."""

    def batch(self, micro_batch: int) -> Tensors:
        """The first chunk's inputs for a micro-batch."""
        ...

    def loss(self, micro_batch: int, outputs: Tensors) -> Tensor:
        """The part of the step's loss that comes from the last chunk's outputs for a micro-batch, a scalar."""
        ...

    def last_backward(self) -> None:
        """The next backward pass is this worker's last: its gradients may be summed over the replicas as they are made."""
        ...

    def reduce(self) -> None:
        """Sum the gradients over the replicas."""
        ...

    def step(self, loss: float) -> None:
        """Update the parameters; ``loss`` is the part of the step's loss that this worker computed."""
        ...
