"""One step of a model in stages, as the executor calls it: this rank's micro-batches, the loss, the sums, the update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparkring.models.batch_norm import finish_steps, forget_steps
from sparkring.models.blocks import StageModule
from sparkring.pipelines.parallel.collectives.sets import SetReducer
from sparkring.pipelines.training.job.tasks import LossSum
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.stages import MicroBatches, only
from sparkring.pipelines.training.strategies.weighted_mean import to_weighted_mean


@dataclass(frozen=True)
class TiedParameter:
    """A parameter that several stages hold."""

    name: str
    parameter: nn.Parameter
    reducer: SetReducer

    def sum_gradient(self) -> None:
        """Sum its gradient over all ranks that hold it; zeros where no pass reached it."""
        if not self.parameter.requires_grad:
            return  # with zeros, weight decay would move it
        if self.parameter.grad is None:
            self.parameter.grad = torch.zeros_like(self.parameter)
        self.reducer.sum_(self.parameter.grad, f"tied.{self.name}")


@dataclass(frozen=True)
class Share:
    """The objects that all steps of a worker use."""

    chunks: tuple[StageModule, ...]
    replicas: SetReducer
    """The replicas of its stage."""
    loss_sum: LossSum
    ring: GradientRing
    tied: tuple[TiedParameter, ...]
    optimizer: torch.optim.Optimizer
    everyone: SetReducer
    """All ranks."""
    speaks: bool
    """Whether this rank's loss counts; other shards have the same loss."""


class PipelinedStep:
    """One step's callbacks (StepCallbacks)."""

    def __init__(self, share: Share, parts: MicroBatches, signals: Signals, *, global_rows: int) -> None:
        self._share, self._parts, self._signals, self._global_rows = share, parts, signals, global_rows
        self.outcome = (math.nan, signals, False)
        """After the step: its loss over all rows, the signals of all ranks, and whether the parameters were updated."""
        self.weight = float(global_rows)
        """After the step: the sum of its rows' weights; their number, if rows have no weights."""

    def batch(self, micro_batch: int) -> dict[str, Tensor]:
        """See StepCallbacks."""
        return self._parts.inputs(micro_batch)

    def loss(self, micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        """See StepCallbacks."""
        return self._share.loss_sum(only(outputs), *self._parts.targets(micro_batch)) / self._global_rows

    def last_backward(self) -> None:
        """See StepCallbacks."""
        self._share.ring.last_pass(0.0)

    def reduce(self) -> None:
        """See StepCallbacks."""
        self._share.ring.finish()
        for one in self._share.tied:
            one.sum_gradient()

    def step(self, loss: float) -> None:
        """See StepCallbacks. All ranks update, or none."""
        share = self._share
        tied = [one.parameter.grad for one in share.tied if one.parameter.grad is not None]
        finite = share.ring.finite() and all(bool(gradient.sum().isfinite()) for gradient in tied)
        signals, weight = self._signals, self._parts.weight()
        mine = (loss, weight or 0.0) if share.speaks else (0.0, 0.0)
        sums = torch.tensor([*mine, signals.stop, signals.save, signals.writing, float(not finite)], dtype=torch.float64)
        share.everyone.sum_(sums, "step")
        all_loss, all_weight, stop, save, writing, spoiled = sums.tolist()
        if weight is not None:
            all_loss *= self._weigh(all_weight)
        updated = not spoiled and math.isfinite(all_loss)
        if updated:
            share.optimizer.step()
            finish_steps(share.chunks, lambda sums: share.replicas.sum_(sums, "batch statistics"))
        else:
            forget_steps(share.chunks)
        self.outcome = (all_loss, Signals(stop, save, writing), updated)

    def _weigh(self, weight: float) -> float:
        """Make the summed gradients those of the mean by weights that add up to ``weight``; returns the factor."""
        self.weight, factor = weight, to_weighted_mean(self._global_rows, weight)
        self._share.ring.scale(factor)
        for one in self._share.tied:
            if one.parameter.grad is not None:
                one.parameter.grad.mul_(factor)
        return factor
