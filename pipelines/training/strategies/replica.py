"""The whole model on one rank, with its optimizer: what all strategies have in common that do not cut the model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from sparkring.conf.schema import Config
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.training.evaluation.evaluate import Predictions
from sparkring.pipelines.training.evaluation.interruptible import Epochs
from sparkring.pipelines.training.job.optimizer import clip_before_step, make_optimizer
from sparkring.pipelines.training.job.tasks import loss_of, shapes_of
from sparkring.pipelines.training.strategies.state import dealt, named_tensors, pack_state, take_weights, unpack_state
from sparkring.pipelines.training.strategies.step import Inputs


class Replica:
    """The model, its optimizer and their state. See Strategy for the methods."""

    def __init__(self, config: Config, manifest: Manifest, inputs: Inputs, communicator: Communicator) -> None:
        """Build the model with its initial weights, which the seed makes equal on all ranks."""
        task, features = manifest.task, manifest.preprocessing
        self.inputs, self.communicator = inputs, communicator
        self.loss_sum = loss_of(task, features, config.train)
        torch.manual_seed(config.train.seed)
        self.model = build_model(config.model, shapes_of(task, features))
        inputs.place(self.model)
        self.optimizer = make_optimizer(self.model.parameters(), config.train.optimizer)
        if config.train.optimizer.clip_norm is not None:
            clip_before_step(self.optimizer, config.train.optimizer.clip_norm)

    def step_record(self) -> None:
        """Nothing: no schedule is followed."""

    def predict(self, loader: Epochs) -> Predictions:
        """Yield predictions for a split's rows, each row on one rank, in evaluation mode and without gradients."""
        self.model.eval()
        try:
            for batch in loader.epoch(0):
                if batch.rows:
                    yield self.model(**self.inputs.of(batch.tensors, epoch=0)), self.inputs.labels(batch.tensors)
        finally:
            self.model.train()

    def part(self) -> dict[str, Tensor]:
        """The tensors that this rank saves, of those that all ranks hold."""
        context = self.communicator.context
        state = dict(named_tensors([self.model], self.optimizer))
        return {name: state[name] for name in dealt({name: tensor.numel() for name, tensor in state.items()}, context.rank, context.size)}

    def unpack(self, state: Iterable[bytes]) -> None:
        """Load a whole state, given in its parts."""
        unpack_state(state, [self.model], self.optimizer)

    def take_weights(self, weights: Iterable[bytes]) -> None:
        """Start from given weights."""
        take_weights(weights, [self.model])

    def require_equal(self) -> None:
        """Check that all ranks hold the same state."""
        self.communicator.require_equal(pack_state([self.model], self.optimizer), what="the model and optimizer state")
