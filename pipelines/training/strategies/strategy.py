"""The interface between the loop and a layout: one rank's part of a model, with its optimizer and its sums over ranks.

    DataParallelStrategy    every rank holds the whole model: plain data parallelism
    PipelinedStrategy       a rank holds some chunks of it (pipelined.py)

State is exchanged as whole tensors under the model's own parameter names, so every layout resumes from any other's checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from sparkring.conf.schema import Config
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.clock import clock_of
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.training.evaluation.evaluate import Predictions
from sparkring.pipelines.training.evaluation.interruptible import Epochs
from sparkring.pipelines.training.job.optimizer import clip_before_step, make_optimizer, set_learning_rate
from sparkring.pipelines.training.job.tasks import loss_of, shapes_of
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.state import dealt, named_tensors, pack_state, take_weights, unpack_state
from sparkring.pipelines.training.strategies.step import Inputs, StepResult, train_step
from sparkring.pipelines.training.strategies.step_times import StepTimes


class Strategy(Protocol):
    """One rank's part of a model; all ranks call the same methods at the same time."""

    description: str
    """How gradients are summed, for events and reports."""

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


class DataParallelStrategy:
    """The whole model, replicated on every rank."""

    def __init__(self, config: Config, manifest: Manifest, inputs: Inputs, communicator: Communicator) -> None:
        task, features = manifest.task, manifest.preprocessing
        self._inputs, self._communicator = inputs, communicator
        self._loss_sum = loss_of(task, features, config.train)
        torch.manual_seed(config.train.seed)
        self._model = build_model(config.model, shapes_of(task, features))
        inputs.place(self._model)
        self._optimizer = make_optimizer(self._model.parameters(), config.train.optimizer)
        if config.train.optimizer.clip_norm is not None:
            clip_before_step(self._optimizer, config.train.optimizer.clip_norm)
        self._ring = GradientRing(self._model.parameters(), communicator, bucket_mb=config.train.bucket_mb)
        self._times = StepTimes(clock_of(inputs.device))
        self.description = self._ring.description

    def step(self, batch: Batch, rate: float, signals: Signals) -> StepResult:
        """See Strategy."""
        set_learning_rate(self._optimizer, rate)
        return train_step(self._model, batch, self._inputs, self._ring, self._optimizer, self._times, self._loss_sum, signals)

    def step_record(self) -> None:
        """See Strategy."""

    def predict(self, loader: Epochs) -> Predictions:
        """See Strategy."""
        self._model.eval()
        try:
            for batch in loader.epoch(0):
                if batch.rows:
                    yield self._model(**self._inputs.of(batch.tensors, epoch=0)), self._inputs.labels(batch.tensors)
        finally:
            self._model.train()

    def part(self) -> dict[str, Tensor]:
        """See Strategy."""
        context = self._communicator.context
        state = dict(named_tensors([self._model], self._optimizer))
        return {name: state[name] for name in dealt({name: tensor.numel() for name, tensor in state.items()}, context.rank, context.size)}

    def whole(self) -> bytes:
        """The whole state."""
        return pack_state([self._model], self._optimizer)

    def unpack(self, state: Iterable[bytes]) -> None:
        """See Strategy."""
        unpack_state(state, [self._model], self._optimizer)

    def take_weights(self, weights: Iterable[bytes]) -> None:
        """See Strategy."""
        take_weights(weights, [self._model])

    def require_equal(self) -> None:
        """See Strategy."""
        self._communicator.require_equal(pack_state([self._model], self._optimizer), what="the model and optimizer state")

    def close(self) -> None:
        """See Strategy."""
        self._ring.close()
