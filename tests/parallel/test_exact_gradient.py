"""The ring's gradient is the serial gradient, however unevenly the rows fall to the ranks.

The network of the lectures, with five samples. dL/dw11 of its first layer is 0.001463 over all five. The plain average of two workers with
3 and 2 samples is 0.001894: the control.
"""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch
from torch import nn

from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from tests.support.lecture import AVERAGED, SERIAL, LectureNetwork, X


class WithUnusedParameter(LectureNetwork):
    """Has one parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def unused_is_zero(self) -> bool:
        """Whether that parameter's gradient is there, and zero."""
        return self.unused.grad is not None and not self.unused.grad.any()


def _ring_gradient(context: RankContext, splits: list[list[int]]) -> list[tuple[float, float, bool]]:
    """For each split, the ring's (dL/dw11, loss, unused gradient is zero) with rank r holding ``split[r]`` of the samples."""
    with Communicator(context) as communicator:
        results = []
        for bucket_mb in (25.0, 1e-5):  # one bucket, and one a parameter
            model = WithUnusedParameter()
            ring = GradientRing(model.parameters(), communicator, bucket_mb=bucket_mb)
            for split in splits:
                start = sum(split[:context.rank])
                if split[context.rank]:
                    share = model.loss_sum(slice(start, start + split[context.rank])) / len(X)
                    ring.begin(share)
                    share.backward()
                else:
                    ring.begin(0.0)
                loss = ring.finish()
                results.append((model.w11_gradient(), loss, model.unused_is_zero()))
            ring.close()
        return results


def _averaged_gradient(context: RankContext, split: list[int]) -> float:
    """What a plain ``hvd.Average`` of each worker's mean gradient gives."""
    with Communicator(context):
        model = LectureNetwork()
        start = sum(split[:context.rank])
        (model.loss_sum(slice(start, start + split[context.rank])) / split[context.rank]).backward()
        return float(hvd.allreduce(torch.tensor(model.w11_gradient(), dtype=torch.float64), name="average", op=hvd.Average))


@pytest.mark.parallel
@pytest.mark.parametrize("shared_memory", [pytest.param(True, id="shared memory"), pytest.param(False, id="ring alone")])
def test_any_split_over_two_ranks_gives_the_serial_gradient(shared_memory: bool) -> None:
    splits = [[3, 2], [4, 1], [5, 0], [0, 5]]
    serial_loss = LectureNetwork().loss_sum().item() / len(X)
    for results in run_on_ranks(2, _ring_gradient, splits, shared_memory=shared_memory):
        assert [round(gradient, 6) for gradient, _, _ in results] == [SERIAL] * len(results)
        assert [loss for _, loss, _ in results] == pytest.approx([serial_loss] * len(results), rel=1e-12)
        assert all(zero for _, _, zero in results)


@pytest.mark.parallel
def test_control_the_plain_average_is_not_the_serial_gradient() -> None:
    assert [round(gradient, 6) for gradient in run_on_ranks(2, _averaged_gradient, [3, 2])] == [AVERAGED] * 2
