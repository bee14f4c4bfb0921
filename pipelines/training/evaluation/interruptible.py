"""Rows on which ranks only judge, left off together as soon as one of them is asked to stop: that may take longer than a step."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Protocol

import torch

from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.collectives.communicator import Communicator


class Epochs(Protocol):
    """What gives batches, one a step on every rank."""

    def epoch(self, epoch: int) -> Generator[Batch]:
        """All of an epoch."""
        ...


class Interrupted(Exception):
    """Some rank was asked to stop; all ranks have this after the same batch."""


class Interruptible:
    """Batches before each of which the ranks tell each other whether they are asked to stop."""

    def __init__(self, batches: Epochs, communicator: Communicator, asked: Callable[[], bool]) -> None:
        """Take what gives this rank's batches, as many as on every other, and whether it is asked."""
        self._batches, self._communicator, self._asked = batches, communicator, asked

    def epoch(self, epoch: int) -> Generator[Batch]:
        """See Epochs.

        Raises:
            Interrupted: some rank is asked to stop.
        """
        with closing(self._batches.epoch(epoch)) as batches:  # else its threads would read on
            for batch in batches:
                if float(self._communicator.sum(torch.tensor(float(self._asked())), name="evaluation.stop")) > 0:
                    raise Interrupted
                yield batch
