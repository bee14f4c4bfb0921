"""A backward pass in two halves leaves the gradients of a whole one, however the chunk uses its parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparkring.models.batch_norm import StepBatchNorm
from sparkring.pipelines.parallel.stages.backward import SplitBackward, weight_gradients

WIDTH = 4


class ScaledStack(nn.Module):
    """Holds a parameter that is used before its layers, one after them, and the layers themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Parameter(torch.full((WIDTH,), 1.5)), nn.Parameter(torch.full((WIDTH,), 0.5))
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.layers(x * self.before) * self.after
        return scaled


class Reused(nn.Module):
    """One layer twice, and a weight that is used outside of its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x))) + self.other(x) @ self.other.weight


class Borrowed(nn.Module):
    """Holds a parameter, and uses the weight of one of its layers once more."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bias = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        borrowed: Tensor = torch.tanh(self.layer(x)) @ self.layer.weight + self.bias
        return borrowed


def in_place() -> nn.Module:
    """A layer whose output the next one overwrites."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))


def normalised() -> nn.Module:
    """Hands its input on as it is where there are no rows."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), StepBatchNorm(WIDTH), nn.Linear(WIDTH, WIDTH))


def gradients(model: nn.Module, micro_batches: list[Tensor], *, halves: bool) -> dict[str, Tensor]:
    """Of the parameters and of the inputs, over all micro-batches; second halves are done after all first ones."""
    model.zero_grad()
    found: dict[str, Tensor] = {}
    split, later = SplitBackward(model) if halves else None, []
    for number, rows in enumerate(micro_batches):
        x = rows.clone().requires_grad_()
        if split is None:
            model(x).square().sum().backward()
            assert x.grad is not None
            found[f"input {number}"] = x.grad
        else:
            outputs, noted = split.forward(lambda x=x: {"y": model(x).square().sum()})  # type: ignore[misc]
            (of_input,), work = split.input_gradients([outputs["y"]], [None], [x], noted)
            assert of_input is not None
            found[f"input {number}"] = of_input
            later.append(work)
    for work in later:
        weight_gradients(work)
    return found | {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("make", [ScaledStack, Reused, Borrowed, in_place, normalised], ids=[
    "parameters around layers", "a layer twice", "a weight of an inner layer", "an output overwritten in place", "batch normalisation"])
@pytest.mark.parametrize("rows", [(3, 2), (0, 3), (2, 0)], ids=["rows everywhere", "none in the first", "none in the last"])
def test_two_halves_give_the_gradients_of_a_whole_pass(make: Callable[[], nn.Module], rows: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    model = make().double()
    micro_batches = [torch.randn(count, WIDTH, dtype=torch.float64) for count in rows]
    wanted = gradients(model, micro_batches, halves=False)
    found = gradients(model, micro_batches, halves=True)
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-12, atol=1e-14, msg=name)
