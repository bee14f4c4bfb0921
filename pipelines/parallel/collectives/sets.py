"""Blocking sums of a tensor over a process set, for sharded layers, tied weights, norms and the step's loss.

Unlike a gradient reducer, a set reducer owns no buffers and starts nothing early: its caller needs the sum to continue.
"""

from __future__ import annotations

from typing import Protocol

import horovod.torch as hvd
import torch
from torch import Tensor

from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.horovod_handles import ring_errors, wait_results
from sparkring.pipelines.parallel.mesh import Ranks


class SetReducer(Protocol):
    """Sums over a set of ranks, all of which call it with the same names in the same order."""

    @property
    def size(self) -> int:
        """Ranks of the set."""
        ...

    @property
    def index(self) -> int:
        """This rank's position in the set."""
        ...

    def sum_(self, tensor: Tensor, name: str) -> None:
        """Replace a contiguous tensor by its sum over the set.

        Args:
            tensor: Floats or integers, of the same shape and dtype on all ranks.
            name: The same on all ranks, and used by no other sum at the same time.
        Raises:
            DeadlinePassed: a rank of the set did not join in time.
            RingEnded: a rank of the set has ended.
        """
        ...


class HorovodSetReducer:
    """Sums by a named allreduce on the process set."""

    def __init__(self, communicator: Communicator, ranks: Ranks) -> None:
        """Use the process set of ``ranks``, this rank among them; the mesh has listed it."""
        self.size, self.index = len(ranks), ranks.index(communicator.context.rank)
        self._set = communicator.process_set(ranks) if self.size > 1 else None
        self._deadline_s = communicator.context.deadline_s
        self._label = "set." + "-".join(map(str, ranks))  # names alone tell sets apart in Horovod's timeline

    def sum_(self, tensor: Tensor, name: str) -> None:
        """See SetReducer; bfloat16 is summed as float32, as Horovod does not support it."""
        if self._set is None:
            return
        summed = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
        what = f"{self._label}.{name}"
        with ring_errors(what):
            handle = hvd.allreduce_async_(summed, name=what, op=hvd.Sum, process_set=self._set)
        wait_results([handle], what=what, deadline_s=self._deadline_s)
        if summed is not tensor:
            tensor.copy_(summed)
