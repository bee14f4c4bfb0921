"""The network that the lectures compute by hand: 2-3-2 sigmoid units, L = 1/2 sum (y - y_hat)^2, five samples for two workers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparkring.conf.schema.model import TabularModelConfig
from sparkring.models.build import Shapes, build_model

X = torch.tensor([[0.5, 1.5], [2.0, 1.0], [1.0, 0.5], [1.5, 1.0], [2.5, 2.0]], dtype=torch.float64)
Y = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 2, dtype=torch.float64)
HIDDEN, OUTPUT = [[1.0, 0, 1], [0, 1, 1], [1, 1, 1]], [[1.0, 0, 1, 1], [0, 1, 0, 1]]
"""Weights; the last column is the bias."""
SERIAL, AVERAGED = 0.001463, 0.001894
"""dL/dw11 of the hidden layer: its mean over all samples; and the plain average of the means of the first three and the last two."""


class LectureNetwork(nn.Module):
    """The catalogue's ``two_three_two`` with these weights and a sigmoid on its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.network = build_model(TabularModelConfig(network="two_three_two"), Shapes(num_numeric=2, num_outputs=2)).double()
        for name, rows in (("hidden", HIDDEN), ("output", OUTPUT)):
            weights = torch.tensor(rows, dtype=torch.float64)
            layer = {"weight": weights[:, :-1], "bias": weights[:, -1]}
            self.network.get_submodule(name).load_state_dict(layer)

    def forward(self, x_R2: Tensor) -> Tensor:
        """The predictions of these rows, (rows, 2)."""
        predictions: Tensor = torch.sigmoid(self.network(x_R2))
        return predictions

    def loss_sum(self, rows: slice = slice(None)) -> Tensor:
        """The loss summed over these samples."""
        return 0.5 * (Y[rows] - self(X[rows])).square().sum()

    def w11_gradient(self) -> float:
        """dL/dw11 of the hidden layer, after a backward pass."""
        gradient = self.network.get_parameter("hidden.weight").grad
        assert gradient is not None
        return float(gradient[0, 0])
