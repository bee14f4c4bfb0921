"""A bug in a block says in which stage and for which micro-batch it came up, in training and where a model is only judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from sparkring.models.blocks import LOGITS, Block, BlockList, StageModule, X
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.stages.executor import Executor

BAD = 2
"""The micro-batch with which the block does not come to terms."""


def _run(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    if int(x[0, 0]) == BAD:
        raise ValueError("a bug in a block")
    made: Tensor = parts[0](x)
    return made


def _executor() -> Executor:
    blocks = BlockList((Block("0", {"0": lambda: nn.Linear(1, 1)}, run=_run, writes=(LOGITS,)),), inputs=(X,))
    return Executor(build_schedule("1f1b", (1,), 4), Worker(0, 0), {0: StageModule(blocks, seed=1)}, rank_of=lambda _: 7)


class _Work:
    def batch(self, micro_batch: int) -> dict[str, Tensor]:
        return {X: torch.full((3, 1), float(micro_batch))}

    def loss(self, _micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs[LOGITS].sum()

    def last_backward(self) -> None: ...

    def reduce(self) -> None: ...

    def step(self, _loss: float) -> None: ...


@pytest.mark.parametrize("judged", [False, True], ids=["training", "judging"])
def test_a_bug_in_a_block_is_placed(*, judged: bool) -> None:
    executor = _executor()
    with pytest.raises(ValueError, match="a bug in a block") as caught:
        if judged:
            list(executor.predict(_Work().batch))
        else:
            executor.run(_Work())
    assert caught.value.__notes__ == [f"rank 7 (stage 0, micro-batch {BAD}, F{BAD})"]
