"""Batch normalisation over micro-batches: torch's own for one of them, the whole step's statistics for several."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparkring.models.batch_norm import StepBatchNorm, finish_steps


def _pair() -> tuple[StepBatchNorm, nn.BatchNorm2d]:
    ours, theirs = StepBatchNorm(3).double(), nn.BatchNorm2d(3).double()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def test_a_step_of_one_micro_batch_is_what_torch_does() -> None:
    ours, theirs = _pair()
    for step in range(3):
        x = torch.randn(5, 3, 4, 2, generator=torch.Generator().manual_seed(step), dtype=torch.float64) * 2 + 1
        torch.testing.assert_close(ours(x), theirs(x))
        finish_steps([ours], lambda _: None)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    x = torch.randn(2, 3, 4, 2, dtype=torch.float64)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_running_statistics_are_those_of_all_micro_batches_of_all_replicas() -> None:
    x = torch.randn(12, 3, 2, 2, dtype=torch.float64)
    _, whole = _pair()
    whole(x)
    replicas = [_pair()[0], _pair()[0]]
    for number, part in enumerate(x.split([1, 5, 2, 4])):
        replicas[number % 2](part)
        with torch.no_grad():
            replicas[number % 2](part)  # a pass that is done again counts once
    total = replicas[0].sums + replicas[1].sums

    def sum_over_replicas(sums: Tensor) -> None:
        sums.copy_(total)

    for replica in replicas:
        finish_steps([nn.Sequential(replica)], sum_over_replicas)
        torch.testing.assert_close(replica.running_mean, whole.running_mean)
        torch.testing.assert_close(replica.running_var, whole.running_var)
        assert not replica.sums.any()
    last = _pair()[1]
    for part in x.split([1, 5, 2, 4]):
        last(part)
    assert last.running_mean is not None
    assert whole.running_mean is not None
    assert not torch.allclose(last.running_mean, whole.running_mean), "the control: torch counts micro-batches as steps"


def test_a_layer_that_several_chunks_of_a_stage_hold_is_updated_once() -> None:
    (ours, theirs), x = _pair(), torch.randn(5, 3, 4, 2, dtype=torch.float64)
    ours(x)
    theirs(x)
    finish_steps([nn.Sequential(ours), nn.Sequential(ours)], lambda _: None)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_a_micro_batch_of_no_rows_changes_nothing() -> None:
    ours, _ = _pair()
    empty: Tensor = ours(torch.empty(0, 3, 4, 2, dtype=torch.float64))
    finish_steps([ours], lambda _: None)
    assert empty.shape == (0, 3, 4, 2)
    assert int(ours.num_batches_tracked) == 0


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1)], ids=str)
def test_a_micro_batch_of_one_value_a_channel_is_its_own_mean(shape: tuple[int, ...]) -> None:
    ours, theirs = StepBatchNorm(3), nn.BatchNorm1d(3) if len(shape) == 2 else nn.BatchNorm2d(3)
    x = torch.arange(3.0).view(shape).requires_grad_()
    with torch.no_grad():
        ours.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    made = ours(x)
    assert made.flatten().tolist() == [1.0, 2.0, 3.0]
    made.sum().backward()
    gradients = [tensor.grad.flatten().tolist() for tensor in (x, ours.weight, ours.bias) if tensor.grad is not None]
    assert gradients == [[0.0] * 3, [0.0] * 3, [1.0] * 3]
    ours.finish_step(1.0)
    assert ours.running_mean.tolist() == [0.0] * 3, "one value says nothing of a variance"
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        theirs(x)
