"""The 2-3-2 network: predictions and gradients are the numbers that the lectures compute by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.lecture import AVERAGED, HIDDEN, OUTPUT, SERIAL, LectureNetwork, X, Y

PER_SAMPLE = [-0.00024, -0.00022, -0.00032, 0.00495, 0.00315]


def _gradient_sum(rows: slice) -> float:
    model = LectureNetwork()
    model.loss_sum(rows).backward()
    return model.w11_gradient()


def _by_hand(*, whole: bool = True) -> Tensor:
    """(5,) dL/dw11 of each sample on plain tensors, by the chain rule; not whole: without the factor 1 - h1."""
    hidden, output = (torch.tensor(rows, dtype=torch.float64) for rows in (HIDDEN, OUTPUT))
    h = torch.sigmoid(X @ hidden[:, :2].T + hidden[:, 2])
    y_hat = torch.sigmoid(h @ output[:, :3].T + output[:, 3])
    d_h1 = ((y_hat - Y) * y_hat * (1 - y_hat)) @ output[:, 0]
    return d_h1 * h[:, 0] * (1 - h[:, 0] if whole else 1) * X[:, 0]


def _mean_and_average(per_sample: Tensor) -> tuple[float, float]:
    """Over all samples; and the plain average of two workers, with three and two of them."""
    return float(per_sample.mean()), float((per_sample[:3].mean() + per_sample[3:].mean()) / 2)


def test_predictions_are_the_lecture_s() -> None:
    assert LectureNetwork()(X).detach().numpy().round(3).tolist() == [
        [0.941, 0.873], [0.950, 0.868], [0.943, 0.860], [0.948, 0.868], [0.951, 0.876]]


def test_the_gradient_of_each_sample_is_the_one_by_hand_on_plain_tensors() -> None:
    gradients = [_gradient_sum(slice(sample, sample + 1)) for sample in range(5)]
    assert [round(gradient, 5) for gradient in gradients] == PER_SAMPLE
    assert gradients == pytest.approx(_by_hand().tolist(), rel=1e-12)


@pytest.mark.parametrize("split", range(6))
def test_any_split_weighted_by_rows_gives_the_serial_gradient(split: int) -> None:
    assert round((_gradient_sum(slice(split)) + _gradient_sum(slice(split, 5))) / 5, 6) == SERIAL


def test_control_the_plain_average_of_three_and_two_samples_is_another_number() -> None:
    mean, average = _mean_and_average(_by_hand())
    assert (round(mean, 6), round(average, 6)) == (SERIAL, AVERAGED)


def test_what_the_lecture_prints_lacks_a_factor_of_the_chain_rule() -> None:
    mean, average = _mean_and_average(_by_hand(whole=False))
    assert (round(mean, 5), round(average, 5)) == (0.03281, 0.04173)
