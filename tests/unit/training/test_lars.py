"""LARS beside the formula, written out for one matrix and one bias."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparkring.pipelines.training.job.lars import Lars

LR, MOMENTUM, DECAY, TRUST = 0.5, 0.9, 0.01, 0.02


def test_it_moves_a_layer_by_the_ratio_of_its_norms_and_a_bias_by_plain_momentum() -> None:
    generator = torch.Generator().manual_seed(3)
    matrix, bias = nn.Parameter(torch.randn(3, 4, generator=generator).double()), nn.Parameter(torch.randn(4, generator=generator).double())
    optimizer = Lars([{"params": [matrix, bias]}], lr=LR, momentum=MOMENTUM, weight_decay=DECAY, trust=TRUST)
    w, b = matrix.detach().clone(), bias.detach().clone()
    v_w, v_b = torch.zeros_like(w), torch.zeros_like(b)
    for _ in range(5):
        g_w, g_b = torch.randn(3, 4, generator=generator).double(), torch.randn(4, generator=generator).double()
        matrix.grad, bias.grad = g_w.clone(), g_b.clone()
        optimizer.step()
        rate = TRUST * _norm(w) / (_norm(g_w) + DECAY * _norm(w))
        v_w = MOMENTUM * v_w + LR * rate * (g_w + DECAY * w)
        v_b = MOMENTUM * v_b + LR * g_b
        w, b = w - v_w, b - v_b
        torch.testing.assert_close((matrix.detach(), bias.detach()), (w, b), rtol=1e-12, atol=0)


def test_a_layer_that_begins_with_zeros_moves_by_its_gradient() -> None:
    layer = nn.Parameter(torch.zeros(2, 2))
    optimizer = Lars([layer], lr=1.0, momentum=0.0, weight_decay=0.1, trust=0.001)
    layer.grad = torch.ones(2, 2)
    optimizer.step()
    assert layer.tolist() == [[-1.0, -1.0], [-1.0, -1.0]]


def test_the_size_of_the_gradient_does_not_matter() -> None:
    moved = []
    for factor in (1.0, 1000.0):
        layer = nn.Parameter(torch.eye(2).double())
        optimizer = Lars([layer], lr=1.0, momentum=0.9, weight_decay=0.0, trust=0.1)
        layer.grad = factor * torch.ones(2, 2).double()
        optimizer.step()
        moved.append(layer.detach().flatten().tolist())
    assert moved[0] == pytest.approx(moved[1], rel=1e-12)


def _norm(values: Tensor) -> float:
    return float(values.square().sum()) ** 0.5
