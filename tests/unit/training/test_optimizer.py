"""Clipping by the norm of the whole gradient, and the shares of an optimizer's state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparkring.conf.schema import OptimizerConfig
from sparkring.pipelines.training.job.optimizer import clip_before_step, make_optimizer
from sparkring.pipelines.training.strategies.sharded_optimizer import owners


def _trained(max_norm: float | None, *, by_torch: bool) -> list[Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    optimizer = make_optimizer(model.parameters(), OptimizerConfig(name="sgd", lr=0.5, momentum=0.9))
    if max_norm is not None and not by_torch:
        clip_before_step(optimizer, max_norm)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(16, 4, dtype=torch.float64)).square().sum().backward()
        if max_norm is not None and by_torch:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_gradients_are_clipped_as_torch_clips_them() -> None:
    ours, theirs, never = _trained(0.7, by_torch=False), _trained(0.7, by_torch=True), _trained(None, by_torch=False)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    assert not torch.allclose(ours[0], never[0]), "the norm is too large to change anything"


def test_gradients_below_the_norm_stay_as_they_are() -> None:
    assert all(torch.equal(one, other) for one, other in zip(_trained(1e6, by_torch=False), _trained(None, by_torch=False), strict=True))


def test_a_gradient_in_two_parts_is_clipped_by_the_norm_of_both() -> None:
    """Two ranks with a parameter each, of norms 3 and 4, and one that both hold, of norm 12: together 13."""
    values, both = (3.0, 4.0), 12.0
    for mine, other in (values, values[::-1]):
        own, shared = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([own, shared], lr=1.0)

        def sum_over_ranks(square: Tensor, other: float = other) -> None:
            square += other ** 2 + both ** 2 / 2

        clip_before_step(optimizer, 6.5, holders={shared: 2}, sum_over_ranks=sum_over_ranks)
        own.grad, shared.grad = torch.tensor([mine]), torch.tensor([both])
        optimizer.step()
        assert (-own.item(), -shared.item()) == pytest.approx((mine / 2, both / 2))


def test_every_parameter_has_one_owner_and_owners_have_nearly_as_much() -> None:
    sizes = {f"p{size}": size for size in (100, 70, 60, 40, 30, 5)}
    owner = owners(sizes, 3)
    assert owner == owners(dict(reversed(sizes.items())), 3), "depends on the order of the parameters"
    loads = [sum(size for name, size in sizes.items() if owner[name] == replica) for replica in range(3)]
    assert sorted(loads) == [100, 100, 105]
