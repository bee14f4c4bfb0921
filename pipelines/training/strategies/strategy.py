"""The interface between the loop and a way to train: one rank's part of a model, with its optimizer and its sums over ranks.

    DataParallelStrategy    every rank holds the whole model, and sums gradients in each step: plain data parallelism
    PipelinedStrategy       a rank holds some chunks of it (pipelined.py)
    LocalSgdStrategy        every rank holds a model of its own; they are averaged from time to time (relaxed/local_sgd.py)
    StaleSyncStrategy       ranks take steps as they become free, and update served weights (relaxed/stale_sync.py)

State is exchanged as whole tensors under the model's own parameter names, so every layout resumes from any other's checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.clock import clock_of
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.training.evaluation.evaluate import Predictions
from sparkring.pipelines.training.evaluation.interruptible import Epochs
from sparkring.pipelines.training.job.optimizer import set_learning_rate
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing, ring_sum_bytes
from sparkring.pipelines.training.strategies.replica import Replica
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.step import Inputs, StepResult, train_step
from sparkring.pipelines.training.strategies.step_times import StepTimes


class Strategy(Protocol):
    """One rank's part of a model; all ranks call the same methods at the same time.

    ``step`` is of ranks that do each step together; StaleSyncStrategy has steps of another kind (loop/dealt_steps.py).
    """

    description: str
    """How ranks train together, for events and reports."""

    def step(self, batch: Batch, rate: float, signals: Signals) -> StepResult:
        """Do one optimizer step at this learning rate, and exchange signals with the other ranks."""
        ...

    def step_record(self) -> dict[str, Any] | None:
        """This rank's actions in the last step with their times (``schedules/records.py``).

        None without a schedule, and on ranks whose actions another rank reports.
        """
        ...

    def predict(self, loader: Epochs) -> Predictions:
        """Yield predictions for a split's rows, each row on one rank, in evaluation mode and without gradients."""
        ...

    def part(self) -> dict[str, Tensor]:
        """This rank's part of the state: whole tensors by the model's own names, on its device; all ranks' parts together are the whole
        state.
        """
        ...

    def unpack(self, state: Iterable[bytes]) -> None:
        """Load what this rank holds from a whole state, given in its parts."""
        ...

    def take_weights(self, weights: Iterable[bytes]) -> None:
        """Start from what this rank holds of given weights (``state.take_weights``)."""
        ...

    def require_equal(self) -> None:
        """Check that ranks with the same parameters hold the same values.

        Raises:
            RingError: some values differ.
        """
        ...

    def close(self) -> None:
        """Release what is shared with other ranks."""
        ...


class DataParallelStrategy(Replica):
    """The whole model, replicated on every rank: all replicas stay equal."""

    def __init__(self, config: Config, manifest: Manifest, inputs: Inputs, communicator: Communicator) -> None:
        super().__init__(config, manifest, inputs, communicator)
        self._ring = GradientRing(self.model.parameters(), communicator, bucket_mb=config.train.bucket_mb, ring=config.train.ring)
        self._times = StepTimes(clock_of(inputs.device))
        self.description = self._ring.description
        self._sent_bytes = ring_sum_bytes(self._ring.sum_bytes, communicator.context.size)

    def step(self, batch: Batch, rate: float, signals: Signals) -> StepResult:
        """See Strategy."""
        set_learning_rate(self.optimizer, rate)
        result = train_step(self.model, batch, self.inputs, self._ring, self.optimizer, self._times, self.loss_sum, signals)
        return replace(result, sent_bytes=self._sent_bytes)

    def close(self) -> None:
        """See Strategy."""
        self._ring.close()
