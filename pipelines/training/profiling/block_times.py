"""Seconds of each block's passes and of the optimizer, measured in this process with the threads or the GPU that it has.

Gradients add up over the repetitions, as they do over the micro-batches of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

import torch
from torch import Tensor

from sparkring.conf.schema import OptimizerConfig
from sparkring.models.blocks import BlockList, StageModule, has_gradient
from sparkring.pipelines.parallel.clock import Clock, clock_of
from sparkring.pipelines.parallel.stages.backward import SplitBackward, weight_gradients
from sparkring.pipelines.training.job.optimizer import make_optimizer

WARM_UP, REPETITIONS = 2, 7

ByRows = list[tuple[int, list[float]]]
"""Seconds of each repetition, by rows; plain values, as a rank returns them."""
Loss = Callable[[Tensor], Tensor]


class BlockSeconds(TypedDict):
    """Measured seconds of a block."""

    forward: ByRows
    backward: ByRows
    """The whole backward pass."""
    input: ByRows
    """The gradient of the input alone."""
    weight: ByRows
    """The gradients of the weights alone."""
    update: list[float]


@dataclass(frozen=True, kw_only=True)
class TimedModel:
    """The model to measure."""

    blocks: BlockList
    """The blocks of the whole model; built one at a time."""
    inputs: Callable[[int], dict[str, Tensor]]
    """The model's inputs, by rows, on the device to measure."""
    row_counts: Sequence[int]
    """Rows of the micro-batches to measure; at least two numbers."""
    optimizer: OptimizerConfig
    dtype: torch.dtype
    """Type of parameters and activations."""


def time_blocks(subject: TimedModel, loss: Loss) -> list[BlockSeconds]:
    """Measure each block by itself, on the outputs of the block before it.

    Args:
        subject: The model.
        loss: The loss of the model's output; its passes count for the last block.
    """
    blocks, row_counts = subject.blocks, subject.row_counts
    tensors = {rows: subject.inputs(rows) for rows in row_counts}
    device = next(tensor.device for named in tensors.values() for tensor in named.values())
    found: list[BlockSeconds] = []
    for number in range(len(blocks)):
        module = StageModule(blocks, first=number, last=number + 1, seed=number).to(device, subject.dtype)
        bench = BlockTimer(module, loss if number == len(blocks) - 1 else None, clock_of(device))
        seconds = BlockSeconds(forward=[], backward=[], input=[], weight=[], update=[])
        for rows in row_counts:
            forward, backward = after_warm_up(bench.whole(tensors[rows]))
            seconds["forward"].append((rows, forward))
            seconds["backward"].append((rows, backward))
        for rows in row_counts:
            first, second = after_warm_up(bench.halves(tensors[rows]))
            seconds["input"].append((rows, first))
            seconds["weight"].append((rows, second))
            tensors[rows] = bench.outputs
        seconds["update"] = _updates(module, subject.optimizer, clock_of(device))
        found.append(seconds)
    return found


class BlockTimer:
    """Times passes of one block; waits for the device after each."""

    def __init__(self, module: StageModule, loss: Loss | None, clock: Clock) -> None:
        """Take a block, the loss if it is the last block, and the clock of its device."""
        self._module, self._loss, self._clock = module, loss, clock
        self._split: SplitBackward | None = None
        self.outputs: dict[str, Tensor] = {}
        """The next block's inputs."""

    def whole(self, tensors: dict[str, Tensor]) -> Iterator[tuple[float, float]]:
        """Yield the seconds of a forward and of a backward pass, again and again."""
        while True:
            leaves = self._leaves(tensors)
            began = self._clock.mark()
            roots = self._roots(self._module(leaves))
            between = self._clock.mark()
            if roots:  # a block may have no parameters
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
            ended = self._clock.mark()
            yield self._clock.seconds(began, between), self._clock.seconds(between, ended)

    def halves(self, tensors: dict[str, Tensor]) -> Iterator[tuple[float, float]]:
        """Yield the seconds of the two halves of a backward pass, again and again. Time whole passes first: this hooks the layers."""
        self._split = split = self._split or SplitBackward(self._module)
        while True:
            leaves = self._leaves(tensors)
            outputs, noted = split.forward(partial(self._module, leaves))
            roots = [root for root in self._roots(outputs) if root.requires_grad]
            began = self._clock.mark()
            _, work = split.input_gradients(roots, [torch.ones_like(root) for root in roots],
                                            [leaf for leaf in leaves.values() if leaf.requires_grad], noted)
            between = self._clock.mark()
            weight_gradients(work)
            ended = self._clock.mark()
            yield self._clock.seconds(began, between), self._clock.seconds(between, ended)

    def _leaves(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        inner = self._module.first > 0
        return {name: tensor.detach().requires_grad_(inner and has_gradient(tensor)) for name, tensor in tensors.items()}

    def _roots(self, outputs: dict[str, Tensor]) -> list[Tensor]:
        self.outputs = {name: tensor.detach() for name, tensor in outputs.items()}
        if self._loss is not None:
            return [self._loss(output) for output in outputs.values()]
        return [output for output in outputs.values() if output.requires_grad]


def after_warm_up(seconds: Iterator[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Both seconds of each repetition after the warm-up."""
    taken = [next(seconds) for _ in range(WARM_UP + REPETITIONS)][WARM_UP:]
    return [first for first, _ in taken], [second for _, second in taken]


def _updates(module: StageModule, config: OptimizerConfig, clock: Clock) -> list[float]:
    """Seconds of an optimizer's step over the block's parameters."""
    parameters = list(module.parameters())
    if not parameters:
        return [0.0]
    optimizer = make_optimizer(parameters, config)
    seconds = []
    for repetition in range(WARM_UP + REPETITIONS):
        began = clock.mark()
        optimizer.step()
        ended = clock.mark()
        if repetition >= WARM_UP:
            seconds.append(clock.seconds(began, ended))
    return seconds
