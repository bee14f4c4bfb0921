"""Seconds of each block's passes and of the optimizer, measured in this process with the threads it has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypedDict

import torch
from torch import Tensor

from sparkring.conf.schema import OptimizerConfig
from sparkring.models.blocks import BlockList, StageModule
from sparkring.pipelines.training.optimizer import make_optimizer

WARM_UP, REPETITIONS = 2, 7


class BlockSeconds(TypedDict):
    """Seconds of each repetition, by rows; plain values, as a rank returns them."""

    forward: list[tuple[int, list[float]]]
    backward: list[tuple[int, list[float]]]
    update: list[float]


def time_blocks(blocks: BlockList, inputs: Callable[[int], dict[str, Tensor]], loss: Callable[[Tensor], Tensor], *,
                row_counts: Sequence[int], optimizer: OptimizerConfig, dtype: torch.dtype) -> list[BlockSeconds]:
    """Measure each block by itself, on what the block before it makes.

    Args:
        blocks: Of the whole model; one at a time is built.
        inputs: The model's inputs, by rows.
        loss: Of the model's output; its passes are the last block's.
        row_counts: Rows of the micro-batches to measure, two or more.
        optimizer: Whose step is measured, too.
        dtype: Of parameters and activations.
    """
    tensors = {rows: inputs(rows) for rows in row_counts}
    found: list[BlockSeconds] = []
    for number in range(len(blocks)):
        module = StageModule(blocks, first=number, last=number + 1, seed=number).to(dtype=dtype)
        last = number == len(blocks) - 1
        seconds = BlockSeconds(forward=[], backward=[], update=[])
        for rows in row_counts:
            forward, backward, tensors[rows] = _passes(module, tensors[rows], loss if last else None)
            seconds["forward"].append((rows, forward))
            seconds["backward"].append((rows, backward))
        seconds["update"] = _updates(module, optimizer)
        found.append(seconds)
    return found


def _passes(module: StageModule, tensors: dict[str, Tensor], loss: Callable[[Tensor], Tensor] | None,
            ) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Seconds of both passes, and what the next block gets."""
    forward, backward = [], []
    outputs: dict[str, Tensor] = {}
    for repetition in range(WARM_UP + REPETITIONS):
        fresh = {name: tensor.detach().requires_grad_(tensor.is_floating_point() and module.first > 0) for name, tensor in tensors.items()}
        module.zero_grad()
        began = time.perf_counter()
        outputs = module(fresh)
        results = [loss(output) for output in outputs.values()] if loss else [each for each in outputs.values() if each.requires_grad]
        between = time.perf_counter()
        if results:  # a block may have no parameters
            torch.autograd.backward(results, [torch.ones_like(result) for result in results])
        ended = time.perf_counter()
        if repetition >= WARM_UP:
            forward.append(between - began)
            backward.append(ended - between)
    return forward, backward, {name: tensor.detach() for name, tensor in outputs.items()}


def _updates(module: StageModule, config: OptimizerConfig) -> list[float]:
    """Seconds of an optimizer's step over the block's parameters."""
    parameters = list(module.parameters())
    if not parameters:
        return [0.0]
    optimizer = make_optimizer(parameters, config)
    seconds = []
    for repetition in range(WARM_UP + REPETITIONS):
        began = time.perf_counter()
        optimizer.step()
        if repetition >= WARM_UP:
            seconds.append(time.perf_counter() - began)
    return seconds
