"""One exact optimizer step on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sparkring.models.blocks import BlockRun
from sparkring.models.inputs import ROW_SEEDS
from sparkring.models.losses import log_loss_sum
from sparkring.pipelines.data.dataset.row_schema import ROW_ID, WEIGHT
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.data.order.rowhash import row_bits
from sparkring.pipelines.training.job.precision import Precision
from sparkring.pipelines.training.job.tasks import LossSum
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.step_times import StepCost, StepTimes
from sparkring.pipelines.training.strategies.weighted_mean import to_weighted_mean

NO_SIGNALS = Signals()


class Spoiled(NamedTuple):
    """Steps whose loss or gradient was NaN or infinite, of ranks that learn of each other's steps later."""

    since: int
    """None of them is before this step of the epoch."""
    steps: int
    """Their number, over all ranks."""


@dataclass(frozen=True)
class StepResult:
    """The result of a step; all but the cost is the same on all ranks."""

    loss: float
    """Mean over all rows of the step, by their weights."""
    weight: float
    """Sum of its rows' weights; their number, if rows have no weights."""
    signals: Signals
    """Sums over all ranks."""
    updated: bool
    """False if the loss or a gradient was NaN or infinite: the parameters are then unchanged."""
    cost: StepCost
    """On a GPU that of the step before."""
    sent_bytes: int = 0
    """Bytes of gradients or weights that this rank exchanged with others: of a sum as many as a ring would send. 0: not counted."""
    spoiled: Spoiled | None = None
    """What was left out since the last exchange of models, if anything was; loss and weight are those of the other steps."""


@dataclass(frozen=True)
class Inputs:
    """Which tensors of a batch the model and the loss take, on which device and in which precision."""

    names: tuple[str, ...]
    """Passed to the model by name."""
    label: str
    """Name of the tensor of labels."""
    precision: Precision
    device: torch.device
    seed: int
    """The seed of what is random in a row, such as dropout."""
    weighted: bool = False
    """Whether rows have weights, which the loss takes too."""

    def placed(self, batch: Batch) -> Batch:
        """A batch with all that the model and the loss take from it on the device, also the rows' seeds; its row ids stay on the CPU."""
        needed = {ROW_ID if name == ROW_SEEDS else name for name in self.names}  # which only the first stage reads
        named = self.of(batch.tensors, epoch=batch.epoch) if needed <= batch.tensors.keys() else {}
        others = [self.label, *([WEIGHT] if self.weighted else [])]
        beside = {name: self._placed(batch.tensors[name]) for name in others if name in batch.tensors and name not in named}
        return replace(batch, tensors={**batch.tensors, **named, **beside})

    def of(self, tensors: Mapping[str, Tensor], *, epoch: int) -> dict[str, Tensor]:
        """The model's arguments: floats in the run's precision, integers unchanged, and the rows' seeds if the model has dropout."""
        if ROW_SEEDS in self.names and ROW_SEEDS not in tensors:
            bits = row_bits(tensors[ROW_ID].numpy(), seed=self.seed, epoch=epoch)
            tensors = {**tensors, ROW_SEEDS: torch.from_numpy(bits.view(np.int64))}
        return {name: self._placed(tensors[name]) for name in self.names}

    def place(self, model: BlockRun) -> None:
        """Move a model to the inputs' device, in the run's precision."""
        model.to(self.device, self.precision.kept)
        model.autocast = self.precision.computed

    def labels(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The labels, shape (rows, ...)."""
        return self._placed(tensors[self.label])

    def targets(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """What the loss takes beside the model's output: the labels and, if rows have weights, the weights (rows,)."""
        return (self.labels(tensors), self._placed(tensors[WEIGHT])) if self.weighted else (self.labels(tensors),)

    def _placed(self, tensor: Tensor) -> Tensor:
        if self.device.type == "cuda" and not tensor.is_cuda:
            tensor = tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device, self.precision.kept if tensor.is_floating_point() else None)


def train_step(model: nn.Module, batch: Batch, inputs: Inputs, ring: GradientRing, optimizer: torch.optim.Optimizer, times: StepTimes,
               loss_sum: LossSum = log_loss_sum, signals: Signals = NO_SIGNALS) -> StepResult:
    """Do one step: this rank's rows forward and backward, the sum over the ring, the update.

    With weights the update follows the gradient of the weighted mean (weighted_mean.py).

    Args:
        model: In training mode.
        batch: This rank's rows; there may be none.
        inputs: Which tensors of the batch the model and the loss take.
        ring: Sums the model's gradients over the ranks.
        optimizer: Updates the model's parameters.
        times: Times the rank's steps.
        loss_sum: (predictions, labels[, weights]) -> scalar, summed over rows.
        signals: This rank's votes.
    """
    began = times.clock.mark()
    ring.signals = signals
    if batch.rows:
        targets = inputs.targets(batch.tensors)
        share = loss_sum(model(**inputs.of(batch.tensors, epoch=batch.epoch)), *targets) / batch.global_rows
        ring.begin(share, weight=targets[1].sum() if inputs.weighted else 0.0)
        share.backward()
    else:
        ring.begin(0.0)
    loss, weight = ring.finish(), float(batch.global_rows)
    if inputs.weighted:
        weight = ring.weight
        factor = to_weighted_mean(batch.global_rows, weight)
        ring.scale(factor)
        loss *= factor
    finite = ring.finite()
    if finite:
        optimizer.step()
    return StepResult(loss, weight, ring.signals, finite, times.end(began, ring.waits))
