"""The mean of models over ranks: by what each learned from, and where none learned anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sparkring.pipelines.training.strategies.relaxed.model_average import ModelAverage, Totals
from sparkring.pipelines.training.strategies.signals import Signals
from tests.support import seams


class _WithAnother:
    """Sums one buffer with those that another rank gives, one a sum; a GradientReducer."""

    description = "two ranks"

    def __init__(self, length: int, others: Iterator[Sequence[float]]) -> None:
        self.buffers, self._others = [torch.zeros(length)], others

    def ready(self, index: int) -> None:
        pass

    def finish(self) -> None:
        self.buffers[0] += torch.tensor(next(self._others))

    def close(self) -> None:
        pass


def _exchanged(monkeypatch: pytest.MonkeyPatch, mine: Totals, *others: tuple[Sequence[float], Totals]) -> tuple[Tensor, Totals]:
    """What becomes of the tensor (1, 1), where another rank gives its tensors and totals one after the other."""
    sums = iter([[total.weight * value for value in values] + [*total, 0.0, 0.0, 0.0] for values, total in others])

    def open_reducer(_: Any, lengths: Sequence[int], *__: Any, **___: Any) -> _WithAnother:
        return _WithAnother(lengths[0], sums)

    monkeypatch.setattr(seams.MODEL_AVERAGE_REDUCER, open_reducer)
    tensor = torch.ones(2)
    found, _ = ModelAverage([tensor], SimpleNamespace(), bucket_mb=1.0).exchange([tensor], mine, Signals())  # type: ignore[arg-type]
    return tensor, found


def test_the_mean_counts_what_each_rank_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, found = _exchanged(monkeypatch, Totals(weight=10.0, loss=4.0), ([3.0, 5.0], Totals(weight=30.0, loss=8.0)))
    assert tensor.tolist() == [2.5, 4.0]
    assert found == Totals(weight=40.0, loss=12.0)


def test_models_are_equal_also_after_an_exchange_in_which_no_rank_learned_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``optimizer_state: keep`` each rank's own momentum has moved its model on."""
    nothing = Totals(spoiled=1.0)
    tensor, found = _exchanged(monkeypatch, nothing, ([3.0, 5.0], nothing), ([3.0, 5.0], nothing._replace(weight=1.0)))
    assert tensor.tolist() == [2.0, 3.0], "both ranks count alike"
    assert found == Totals(spoiled=2.0)
