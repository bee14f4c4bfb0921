"""Activation checkpointing lets go of what a forward pass would keep for its backward pass."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from sparkring.conf.schema import Recompute
from sparkring.models.blocks import LOGITS, Block, BlockList, StageModule, X
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Worker
from sparkring.pipelines.parallel.stages.executor import Executor

MICRO_BATCHES, ROWS, WIDTH = 4, 8, 16


class _Work:
    def batch(self, micro_batch: int) -> dict[str, Tensor]:
        return {X: torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(micro_batch))}

    def loss(self, _micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs[LOGITS].square().sum()

    def last_backward(self) -> None: ...

    def reduce(self) -> None: ...

    def step(self, _loss: float) -> None: ...


class _Counting(Executor):
    """Notes how many bytes autograd keeps in each forward pass."""

    kept: dict[int, int]

    def _do(self, action: Action, work: object) -> None:
        sizes: list[int] = []

        def keep(tensor: Tensor) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            super()._do(action, work)  # type: ignore[arg-type]
        if action.kind is Kind.F:
            self.kept[action.micro_batch] = sum(sizes)


def _kept(recompute: Recompute) -> dict[int, int]:
    blocks = BlockList((Block("0", {"0": lambda: nn.Linear(WIDTH, WIDTH)}, run=lambda parts, x: torch.tanh(parts[0](x))),
                        Block("1", {"1": lambda: nn.Linear(WIDTH, WIDTH)}, writes=(LOGITS,))), inputs=(X,))
    executor = _Counting(build_schedule("gpipe", (1,), MICRO_BATCHES), Worker(0, 0), {0: StageModule(blocks, seed=1)},
                         rank_of=lambda _: 0, recompute=recompute)
    executor.kept = {}
    executor.run(_Work())
    return executor.kept


@pytest.mark.parametrize(("recompute", "keeping"), [("never", {0, 1, 2, 3}), ("except_last", {3}), ("always", set())])
def test_only_passes_that_are_not_done_again_keep_activations(recompute: Recompute, keeping: set[int]) -> None:
    kept = _kept(recompute)
    assert {micro_batch for micro_batch, size in kept.items() if size} == keeping
    assert all(size >= 2 * ROWS * WIDTH * 4 for size in kept.values() if size), "at least the inputs of both layers"
