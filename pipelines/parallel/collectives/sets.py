"""Summing a tensor over the ranks of a set, at once: what a layer in shards, tied weights, norms and the step's loss need.

Unlike the reducers of gradients this one owns no buffers and starts nothing early: who calls it cannot go on without the sum.
"""

from __future__ import annotations

from typing import Protocol

import horovod.torch as hvd
import torch
from torch import Tensor

from sparkring.pipelines.parallel.collectives.communicator import Communicator, ring_errors, wait_results
from sparkring.pipelines.parallel.mesh import Ranks


class SetReducer(Protocol):
    """Sums over a set of ranks, all of which call it with the same names in the same order."""

    @property
    def size(self) -> int:
        """Ranks of the set."""
        ...

    @property
    def index(self) -> int:
        """This rank's number in the set."""
        ...

    def sum_(self, tensor: Tensor, name: str) -> None:
        """Replace a contiguous tensor by its sum over the set.

        Args:
            tensor: Of one shape and type on all ranks; of floats or integers.
            name: The same on all ranks, and of no other sum at the same time.
        Raises:
            DeadlinePassed: a rank of the set does not come.
            RingEnded: one has ended.
        """
        ...


class HorovodSetReducer:
    """By a named allreduce on the set's process set."""

    def __init__(self, communicator: Communicator, ranks: Ranks) -> None:
        """Take the process set of ``ranks``, this rank among them, which the mesh has listed."""
        self.size, self.index = len(ranks), ranks.index(communicator.context.rank)
        self._set = communicator.process_set(ranks) if self.size > 1 else None
        self._deadline_s = communicator.context.deadline_s
        self._label = "set." + "-".join(map(str, ranks))  # Horovod's timeline tells sets apart by names only

    def sum_(self, tensor: Tensor, name: str) -> None:
        """Sum and wait; types that Horovod does not know are summed as float32."""
        if self._set is None:
            return
        summed = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
        what = f"{self._label}.{name}"
        with ring_errors(what):
            handle = hvd.allreduce_async_(summed, name=what, op=hvd.Sum, process_set=self._set)
        wait_results([handle], what=what, deadline_s=self._deadline_s)
        if summed is not tensor:
            tensor.copy_(summed)
