"""Between hosts gradients travel while the backward pass computes others, and all ranks cut them alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.allreduce.gradients import GradientReducer, open_gradient_reducer
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing

LAYERS, WIDTH = 8, 512
"""A layer has 1.05 MB of gradients."""


def _sent_before_the_last_layer(context: RankContext) -> tuple[list[int], float]:
    """(Elements of each buffer, the share of all elements that was on its way when the pass came to the model's first layer.)"""
    reducers, sent, share = list[GradientReducer](), list[int](), list[float]()

    def noting(*args: Any, **settings: Any) -> GradientReducer:
        reducer = open_gradient_reducer(*args, **settings)
        ready = reducer.ready

        def noted(index: int) -> None:
            sent.append(len(reducer.buffers[index]))
            ready(index)

        reducer.ready = noted  # type: ignore[method-assign]
        reducers.append(reducer)
        return reducer

    def came(_: Tensor) -> None:
        share.append(sum(sent) / sum(len(buffer) for buffer in reducers[0].buffers))

    with Communicator(context) as communicator:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        model = nn.Sequential(*layers)
        ring = GradientRing(model.parameters(), communicator, bucket_mb=25.0, open_gradient_reducer=noting)
        layers[0].weight.register_hook(came)
        loss = model(torch.ones(1, WIDTH)).sum()
        ring.begin(loss)
        loss.backward()
        ring.finish()
        lengths = [len(buffer) for buffer in reducers[0].buffers]
        ring.close()
    return lengths, share[0]


@pytest.mark.parametrize(("hosts", "buffers", "least", "most"), [
    pytest.param((0, 1), LAYERS, 0.8, 0.9, id="two hosts: all layers but the one that is computed"),
    pytest.param((0, 0, 1, 1), LAYERS, 0.8, 0.9, id="two hosts of two ranks"),
    pytest.param((0, 0), 1, 0.0, 0.0, id="control: one host has one buffer for all")])
def test_gradients_travel_between_hosts_while_the_backward_pass_goes_on(
        hosts: tuple[int, ...], buffers: int, least: float, most: float) -> None:
    found = run_on_ranks(len(hosts), _sent_before_the_last_layer, hosts=hosts)
    assert {len(lengths) for lengths, _ in found} == {buffers}
    assert len({tuple(lengths) for lengths, _ in found}) == 1
    assert all(least <= share <= most for _, share in found)
