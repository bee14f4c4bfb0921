"""Local SGD: each rank updates a model of its own, and from time to time all take the mean of their models.

    step       gradient of the mean loss of this rank's rows, update of this rank's model; nothing is sent
    exchange   every k steps and after an epoch's last one: the mean of all models, by the rows that each learned from

With one exchange a step, sgd and averaged state it is the exact strategy: the mean of w - lr g_r by rows n_r is
w - lr (sum of n_r g_r / n). With more steps between exchanges it is not, and the models meet less often than they drift apart.

A gradient that is not finite counts as zero; all ranks learn of it at the exchange. Votes wait for the exchange, too, so checkpoints
and stops come after one.
Source: Stich, "Local SGD converges fast and communicates little", ICLR 2019; McMahan et al., "Communication-efficient learning of deep
networks from decentralized data", AISTATS 2017 (the mean by rows).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sparkring.conf.schema import Config
from sparkring.conf.schema.strategy import LocalSgdConfig
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.clock import Mark, clock_of
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.training.job.optimizer import set_learning_rate
from sparkring.pipelines.training.strategies.gradient_ring import ring_sum_bytes
from sparkring.pipelines.training.strategies.relaxed.apart import Apart
from sparkring.pipelines.training.strategies.relaxed.model_average import ModelAverage, Totals
from sparkring.pipelines.training.strategies.replica import Replica
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.state import OPTIMIZER, named_tensors
from sparkring.pipelines.training.strategies.step import Inputs, Spoiled, StepResult
from sparkring.pipelines.training.strategies.step_times import Span, StepTimes

COUNTER = "step"
"""In the optimizer's state for a parameter, torch's name of the number of its updates."""


class LocalSgdStrategy(Replica):
    """One rank's model, equal to the others' after each exchange."""

    def __init__(self, config: Config, manifest: Manifest, inputs: Inputs, communicator: Communicator, *, strategy: LocalSgdConfig,
                 steps_per_epoch: int) -> None:
        super().__init__(config, manifest, inputs, communicator)
        self._strategy, self._steps_per_epoch, self._train = strategy, steps_per_epoch, config.train
        self._average: ModelAverage | None = None
        self._since, self._sent_bytes = Totals(), 0
        """What this rank did since the last exchange; and the bytes of one."""
        self._apart: Apart | None = None
        self._asks = True
        """Whether ranks ask each other until the next exchange."""
        self._times = StepTimes(clock_of(inputs.device))
        every = f"every {strategy.every_steps} steps and " if strategy.every_steps else ""
        self.description = f"local_sgd: models are averaged {every}at an epoch's end; the optimizer's state: {strategy.optimizer_state}"

    def step(self, batch: Batch, rate: float, signals: Signals) -> StepResult:
        """Do one step of this rank's model, and the exchange if one is due (see Strategy).

        Before an exchange the result's loss is the mean over this rank's rows, and its weight 0; after one they are those of all rows that
        were learned from since the last exchange.
        """
        set_learning_rate(self.optimizer, rate)
        began = self._times.clock.mark()
        self._apart = apart = self._apart or Apart(self.communicator, first_step=batch.step, asks=self._asks)
        apart.check()
        loss = self._learn(batch)
        if not self._exchanges_after(batch.step):
            return StepResult(loss, 0.0, Signals(), updated=True, cost=self._times.end(began, []))
        met = self._times.clock.mark()
        self._since, self._apart = self._since._replace(long=float(apart.is_long)), None
        apart.meet()
        totals, votes = self._exchange(signals)
        self._asks = totals.long > 0
        loss = totals.loss / totals.weight if totals.weight else 0.0
        return StepResult(loss, totals.weight, votes, updated=True, cost=self._times.end(began, self._waited(met)),
                          sent_bytes=self._sent_bytes, spoiled=Spoiled(apart.first_step, int(totals.spoiled)) if totals.spoiled else None)

    def part(self) -> dict[str, Tensor]:
        """What this rank saves: a share of what all hold alike. State that each rank keeps for itself is rank 0's."""
        mine = super().part()
        if self._strategy.optimizer_state == "keep":
            mine = {name: tensor for name, tensor in mine.items() if not name.startswith(OPTIMIZER)}
            if self.communicator.context.rank == 0:
                mine |= {name: tensor for name, tensor in named_tensors([self.model], self.optimizer) if name.startswith(OPTIMIZER)}
        return mine

    def close(self) -> None:
        """See Strategy."""
        if self._average is not None:
            self._average.close()

    def _learn(self, batch: Batch) -> float:
        """Update this rank's model by its rows; returns their mean loss, 0 without rows."""
        self.optimizer.zero_grad()
        total, weight, loss = 0.0, 0.0, 0.0
        if batch.rows:
            targets = self.inputs.targets(batch.tensors)
            losses = self.loss_sum(self.model(**self.inputs.of(batch.tensors, epoch=batch.epoch)), *targets)
            weight = float(targets[1].sum()) if self.inputs.weighted else float(batch.rows)
            total = float(losses.detach())
            loss = total / weight if weight else 0.0
            if weight:
                (losses / weight).backward()
        finite = math.isfinite(total) and self._gradients_are_finite()
        for parameter in self.model.parameters():
            if parameter.requires_grad and (parameter.grad is None or not finite):
                parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        since = self._since
        self._since = Totals(since.weight + weight, since.loss + total, since.spoiled) if finite else since._replace(
            spoiled=since.spoiled + 1)
        return loss

    def _gradients_are_finite(self) -> bool:
        sums = [parameter.grad.sum() for parameter in self.model.parameters() if parameter.grad is not None]
        return not sums or bool(torch.stack(sums).isfinite().all())

    def _exchanges_after(self, step: int) -> bool:
        every = self._strategy.every_steps
        return step == self._steps_per_epoch - 1 or (every is not None and (step + 1) % every == 0)

    def _exchange(self, votes: Signals) -> tuple[Totals, Signals]:
        tensors = self._averaged_tensors()
        if self._average is None:
            self._average = ModelAverage(tensors, self.communicator, bucket_mb=self._train.bucket_mb, ring=self._train.ring)
            self._sent_bytes = ring_sum_bytes(sum(tensor.nbytes for tensor in tensors), self.communicator.context.size)
        found = self._average.exchange(tensors, self._since, votes)
        self._since = Totals()
        return found

    def _averaged_tensors(self) -> Sequence[Tensor]:
        """The weights and, if it is averaged, the optimizer's state for them; its counters are equal on all ranks."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        weights = [parameter.detach() for parameter in trained]
        if self._strategy.optimizer_state == "keep":
            return weights
        states = (self.optimizer.state[parameter] for parameter in trained)
        return weights + [value for state in states for key, value in state.items() if isinstance(value, Tensor) and key != COUNTER]

    def _waited(self, since: Mark) -> list[Span]:
        return [(since, self._times.clock.mark())]
