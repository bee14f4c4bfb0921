"""Evaluation batches that all ranks leave together as soon as one of them is asked to stop: they may take longer than a step."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Protocol

import torch

from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.collectives.communicator import Communicator


class Epochs(Protocol):
    """Yields batches, one for each step on every rank."""

    def epoch(self, epoch: int) -> Generator[Batch]:
        """All batches of an epoch."""
        ...


class Interrupted(Exception):
    """Some rank was asked to stop; all ranks raise this after the same batch."""


class Interruptible:
    """Batches; before each one the ranks exchange whether they are asked to stop."""

    def __init__(self, batches: Epochs, communicator: Communicator, asked: Callable[[], bool]) -> None:
        """``batches`` yields equally many on every rank; ``asked`` returns whether this rank is asked to stop."""
        self._batches, self._communicator, self._asked = batches, communicator, asked

    def epoch(self, epoch: int) -> Generator[Batch]:
        """See Epochs.

        Raises:
            Interrupted: some rank is asked to stop.
        """
        with closing(self._batches.epoch(epoch)) as batches:  # otherwise its threads would continue to read
            for batch in batches:
                if float(self._communicator.sum(torch.tensor(float(self._asked())), name="evaluation.stop")) > 0:
                    raise Interrupted
                yield batch
