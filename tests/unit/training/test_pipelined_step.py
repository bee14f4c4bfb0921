"""A parameter that several stages hold: what its optimizer sees of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparkring.conf.schema import OptimizerConfig
from sparkring.pipelines.training.job.optimizer import make_optimizer
from sparkring.pipelines.training.strategies.pipelined_step import TiedParameter


def _sum(gradient: Tensor, name: str) -> None:
    """As if two stages held the parameter and had the same gradient."""
    assert name == "tied.weight"
    gradient.mul_(2.0)


@pytest.mark.parametrize("trained", [pytest.param(True, id="trained"), pytest.param(False, id="frozen")])
def test_weight_decay_moves_a_tied_parameter_only_if_it_is_trained(trained: bool) -> None:
    parameter, reducer = nn.Parameter(torch.ones(2), requires_grad=trained), SimpleNamespace(sum_=_sum)
    untyped: Any = reducer
    TiedParameter("weight", parameter, untyped).sum_gradient()
    make_optimizer([parameter], OptimizerConfig(name="adamw", lr=0.1, weight_decay=0.5)).step()
    assert parameter.tolist() == pytest.approx([0.95 if trained else 1.0] * 2)
