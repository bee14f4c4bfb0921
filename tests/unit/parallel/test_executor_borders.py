"""What crosses a border between chunks: complex numbers have gradients as real ones have, whole ones have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from sparkring.models.blocks import LOGITS, Block, BlockList, StageModule, X
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.stages.executor import Executor

MICRO_BATCHES = 2


def _turned(parts: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, Tensor]:
    """Complex numbers, and the places of the largest ones."""
    made = parts[0](x)
    return torch.view_as_complex(made.reshape(len(x), -1, 2)), made.argmax(1)


def _back(parts: Sequence[nn.Module], z: Tensor, place: Tensor) -> Tensor:
    made: Tensor = parts[0](torch.view_as_real(z * (1 + 2j)).reshape(len(z), -1)) + place[:, None]
    return made


def _blocks() -> BlockList:
    def layer() -> nn.Module:
        return nn.Linear(4, 4)

    return BlockList((Block("0", {"0": layer}, run=_turned, writes=("z", "place")),
                      Block("1", {"1": layer}, run=_back, reads=("z", "place"), writes=(LOGITS,))), inputs=(X,))


class _Work:
    def batch(self, micro_batch: int) -> dict[str, Tensor]:
        return {X: torch.randn(3, 4, generator=torch.Generator().manual_seed(micro_batch))}

    def loss(self, _micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs[LOGITS].square().sum()

    def last_backward(self) -> None: ...

    def reduce(self) -> None: ...

    def step(self, _loss: float) -> None: ...


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_complex_numbers_have_gradients_across_a_border(recompute: str) -> None:
    whole = StageModule(_blocks(), seed=1)
    for micro_batch in range(MICRO_BATCHES):
        whole(_Work().batch(micro_batch))[LOGITS].square().sum().backward()
    modules = {chunk: StageModule(_blocks(), first=chunk, last=chunk + 1, seed=1) for chunk in range(2)}
    schedule = build_schedule("interleaved", (1,), MICRO_BATCHES, chunks_per_stage=2)
    Executor(schedule, Worker(0, 0), modules, rank_of=lambda _: 0, recompute=recompute).run(_Work())  # type: ignore[arg-type]
    found = {name: parameter.grad for module in modules.values() for name, parameter in module.named_parameters()}
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, msg=name)
    assert all(grad is not None and grad.abs().sum() > 0 for grad in found.values())
