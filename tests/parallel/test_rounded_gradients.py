"""Gradients that travel in 16 bits: rounded alike on all ranks, nothing of them is lost, and loss and votes are exact."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from harness.ranks import run_on_ranks
from sparkring.conf.schema import RingConfig
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from sparkring.pipelines.training.strategies.signals import Signals

WIDTH, STEPS = 64, 20
LOSS = 1 / 3
WEIGHT = 2.0**24 - 1
"""float32 has it, 16 bits do not."""


def _steps(context: RankContext, wire: str) -> list[tuple[list[float], float, float, float]]:
    """Of each step (first gradients, loss, weight, votes to stop); rank 1 has no rows in any of them."""
    found = []
    with Communicator(context) as communicator:
        model = nn.Linear(WIDTH, 4)
        allreduce = "horovod" if wire == "exact" else "auto"
        ring = GradientRing(model.parameters(), communicator, bucket_mb=1.0, ring=RingConfig(allreduce=allreduce, wire=wire))
        for step in range(STEPS):
            ring.signals = Signals(stop=1.0)
            ring.begin(LOSS if context.rank == 0 else 0.0, weight=WEIGHT if context.rank == 0 else 0.0)
            if context.rank != 1:
                generator = torch.Generator().manual_seed(STEPS * context.rank + step)
                model(torch.rand(WIDTH, generator=generator)).sum().backward()
            loss = ring.finish()
            assert model.weight.grad is not None
            found.append((model.weight.grad.flatten().tolist(), loss, ring.weight, ring.signals.stop))
        ring.close()
    return found


@pytest.mark.parallel
@pytest.mark.parametrize("hosts", [(0, 1, 2), (0, 0, 1, 1)], ids=str)
def test_ranks_get_the_same_rounded_gradients_whose_sum_over_the_steps_is_exact(hosts: tuple[int, ...]) -> None:
    results = run_on_ranks(len(hosts), _steps, "bf16", hosts=hosts)
    exact = run_on_ranks(len(hosts), _steps, "exact", hosts=hosts)[0]
    assert all(one == other for one, other in pairwise(results))
    assert [step[1:] for step in results[0]] == [step[1:] for step in exact]
    assert exact[0][1:] == (torch.tensor(LOSS).item(), WEIGHT, len(hosts))
    rounded, right = (torch.tensor([step[0] for step in each], dtype=torch.float64) for each in (results[0], exact))
    assert torch.equal(rounded, rounded.bfloat16().double())
    assert not torch.equal(right, right.bfloat16().double()), "the control"
    worst = (rounded - right).abs().max()
    assert (rounded.sum(dim=0) - right.sum(dim=0)).abs().max() < 3 * worst, "what is kept, however many steps there were"
