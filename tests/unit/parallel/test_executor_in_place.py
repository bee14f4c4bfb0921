"""Blocks may change their input in place, as ``nn.ReLU(inplace=True)`` does: no cut, no recomputation changes what is learned."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from sparkring.conf.schema import Recompute
from sparkring.models.blocks import LOGITS, Block, BlockList, StageModule, X
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.stages.executor import Executor

ROWS, WIDTH, MICRO_BATCHES = 6, 4, 3


def _blocks() -> BlockList:
    """The first block doubles its input where it lies, the third one cuts off what is negative there."""
    def layer() -> nn.Module:
        return nn.Linear(WIDTH, WIDTH)

    return BlockList((
        Block("0", {"0": layer}, run=lambda parts, x: parts[0](x.mul_(2.0))),
        Block("1", {"1": layer}),
        Block("2", {"2": layer}, run=lambda parts, x: parts[0](x.relu_())),
        Block("3", {"3": layer}, run=lambda parts, x: parts[0](x.relu_()), writes=(LOGITS,))), inputs=(X,))


def _part(micro_batch: int) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(micro_batch))


class _Work:
    """A step whose loss is the square of what comes out."""

    def batch(self, micro_batch: int) -> dict[str, Tensor]:
        return {X: _part(micro_batch)}

    def loss(self, _micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs[LOGITS].square().sum()

    def last_backward(self) -> None: ...

    def reduce(self) -> None: ...

    def step(self, _loss: float) -> None: ...


def _gradients(chunks: int, recompute: Recompute) -> dict[str, Tensor]:
    """With all chunks on one worker, which hand over in memory."""
    blocks = _blocks()
    bounds = range(0, len(blocks) + 1, len(blocks) // chunks)
    modules = {chunk: StageModule(blocks, first=bounds[chunk], last=bounds[chunk + 1], seed=1) for chunk in range(chunks)}
    schedule = build_schedule("interleaved", (1,), MICRO_BATCHES, chunks_per_stage=chunks)
    Executor(schedule, Worker(0, 0), modules, rank_of=lambda _: 0, recompute=recompute).run(_Work())
    return {name: parameter.grad for module in modules.values() for name, parameter in module.named_parameters()
            if parameter.grad is not None}


@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("recompute", ["never", "always", "except_last"])
def test_a_block_that_works_in_place_learns_the_same_wherever_it_is_cut(chunks: int, recompute: Recompute) -> None:
    whole = StageModule(_blocks(), seed=1)
    for micro_batch in range(MICRO_BATCHES):
        whole({X: _part(micro_batch)})[LOGITS].square().sum().backward()
    found = _gradients(chunks, recompute)
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, msg=name)
