"""The ring's gradient is the serial gradient, however unevenly the rows fall to the ranks.

The network of the lectures: 2-3-2 sigmoid units, L = 1/2 sum (y - y_hat)^2, five samples. dL/dw11 of the first layer is
0.001463 over all five. The plain average of two workers with 3 and 2 samples is 0.001894: the control.
"""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch
from torch import Tensor, nn

from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing

X = [[0.5, 1.5], [2.0, 1.0], [1.0, 0.5], [1.5, 1.0], [2.5, 2.0]]
Y = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
SERIAL, AVERAGED = 0.001463, 0.001894


class SigmoidNetwork(nn.Module):
    """2-3-2 with the lecture's weights; the last column of each matrix is the bias. Has one parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor([[1.0, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=torch.float64))
        self.second = nn.Parameter(torch.tensor([[1.0, 0, 1, 1], [0, 1, 0, 1]], dtype=torch.float64))
        self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sigmoid(x @ self.first[:, :2].T + self.first[:, 2])
        return torch.sigmoid(hidden @ self.second[:, :3].T + self.second[:, 3])


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _loss_sum(rows: slice, model: nn.Module) -> Tensor:
    x, y = (torch.tensor(values, dtype=torch.float64)[rows] for values in (X, Y))
    return 0.5 * ((y - model(x)) ** 2).sum()


def _ring_gradient(context: RankContext, splits: list[list[int]]) -> list[tuple[float, float, bool]]:
    """For each split, the ring's (dL/dw11, loss, unused gradient is zero) with rank r holding ``split[r]`` of the samples."""
    with Communicator(context) as communicator:
        results = []
        for bucket_mb in (25.0, 1e-5):  # one bucket, and one a parameter
            model = SigmoidNetwork()
            ring = GradientRing(model.parameters(), communicator, bucket_mb=bucket_mb)
            for split in splits:
                start = sum(split[:context.rank])
                if split[context.rank]:
                    share = _loss_sum(slice(start, start + split[context.rank]), model) / len(X)
                    ring.begin(share)
                    share.backward()
                else:
                    ring.begin(0.0)
                loss = ring.finish()
                results.append((float(_gradient(model.first)[0, 0]), loss, bool((_gradient(model.unused) == 0).all())))
            ring.close()
        return results


def _averaged_gradient(context: RankContext, split: list[int]) -> float:
    """What a plain ``hvd.Average`` of each worker's mean gradient gives."""
    with Communicator(context):
        model = SigmoidNetwork()
        start = sum(split[:context.rank])
        (_loss_sum(slice(start, start + split[context.rank]), model) / split[context.rank]).backward()
        return float(hvd.allreduce(_gradient(model.first), name="average", op=hvd.Average)[0, 0])


@pytest.mark.parallel
@pytest.mark.parametrize("shared_memory", [pytest.param(True, id="shared memory"), pytest.param(False, id="ring alone")])
def test_any_split_over_two_ranks_gives_the_serial_gradient(shared_memory: bool) -> None:
    splits = [[3, 2], [4, 1], [5, 0], [0, 5]]
    serial_loss = _loss_sum(slice(None), SigmoidNetwork()).item() / len(X)
    for results in run_on_ranks(2, _ring_gradient, splits, shared_memory=shared_memory):
        assert [round(gradient, 6) for gradient, _, _ in results] == [SERIAL] * len(results)
        assert [loss for _, loss, _ in results] == pytest.approx([serial_loss] * len(results), rel=1e-12)
        assert all(zero for _, _, zero in results)


@pytest.mark.parallel
def test_control_the_plain_average_is_not_the_serial_gradient() -> None:
    assert [round(gradient, 6) for gradient in run_on_ranks(2, _averaged_gradient, [3, 2])] == [AVERAGED] * 2


def test_serial_training_gives_the_lecture_s_gradient() -> None:
    model = SigmoidNetwork()
    (_loss_sum(slice(None), model) / len(X)).backward()
    assert round(float(_gradient(model.first)[0, 0]), 6) == SERIAL
