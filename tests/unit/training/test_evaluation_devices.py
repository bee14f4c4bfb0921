"""Held-out totals of a model on a GPU, on tensors that say they are on one: their device is right without a GPU being there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from sparkring.pipelines.training.evaluation.evaluate import _class_totals
from tests.support.cell import needs_simulated_gpu


class OneDevice(TorchFunctionMode):
    """Refuses to stack tensors of several devices, as CUDA's kernels do."""

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        if func is torch.stack and len({tensor.device for tensor in args[0]}) > 1:
            raise RuntimeError("expected all tensors to be on the same device")
        return func(*args, **(kwargs or {}))


def on_a_gpu(totals: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    with FakeTensorMode(), OneDevice():
        return totals(torch.empty(4, 3, device="cuda"), torch.empty(4, dtype=torch.int64, device="cuda"))


@needs_simulated_gpu
def test_totals_of_classes_are_stacked_on_the_device_and_brought_to_the_host() -> None:
    totals = on_a_gpu(_class_totals)
    assert (totals.device.type, totals.dtype, tuple(totals.shape)) == ("cpu", torch.float64, (3,))


def test_control_a_count_made_on_the_host_is_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        on_a_gpu(lambda logits, labels: torch.stack([logits.sum(), torch.tensor(len(labels))]))


def test_totals_of_classes_are_loss_hits_and_rows() -> None:
    logits = torch.tensor([[0.0, 0.0], [3.0, 1.0], [0.0, 2.0]])
    loss, hits, rows = _class_totals(logits, torch.tensor([0, 0, 0])).tolist()
    assert loss == pytest.approx(0.6931472 + 0.1269280 + 2.1269280)
    assert (hits, rows) == (2.0, 3.0)
