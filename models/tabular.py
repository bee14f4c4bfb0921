"""The network for tables: an embedding for each category column beside the numbers, then a multilayer perceptron.

    categorical (B, C) -> C embeddings -+
                                        +-> concat -> [linear -> ReLU] x len(hidden) -> linear -> logits (B, K)
    numeric     (B, F) -----------------+

Shapes: B rows, F numeric features, C category columns, K logits a row. Initial weights depend on the seed of torch's generator only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class TabularNetwork(nn.Module):
    """Predicts a label from one row of a table."""

    def __init__(self, num_numeric: int, cardinalities: Sequence[int], *, hidden: Sequence[int], max_embedding: int,
                 num_outputs: int = 1) -> None:
        """Build the layers.

        Args:
            num_numeric: F, columns of ``numeric``.
            cardinalities: Ids of each category column, id 0 (unknown) included.
            hidden: Widths of the hidden layers.
            max_embedding: Largest embedding width.
            num_outputs: K; with 1 the logits are returned as (B,).
        """
        super().__init__()
        widths = [embedding_width(size, limit=max_embedding) for size in cardinalities]
        self.embeddings = nn.ModuleList(nn.Embedding(size, width) for size, width in zip(cardinalities, widths, strict=True))
        layers: list[nn.Module] = []
        width = num_numeric + sum(widths)
        for units in hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
        self.layers = nn.Sequential(*layers, nn.Linear(width, num_outputs))

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Return logits (B, K), or (B,) where K is 1, for ``numeric`` (B, F) floats and ``categorical`` (B, C) int64 ids."""
        columns = [embed(categorical[:, position]) for position, embed in enumerate(self.embeddings)]
        logits: Tensor = self.layers(torch.cat([numeric, *columns], dim=1))
        return logits.squeeze(1) if logits.shape[1] == 1 else logits


def embedding_width(cardinality: int, *, limit: int) -> int:
    """Width for a vocabulary: grows more slowly than the vocabulary, at most ``limit``.

    Source: the rule ``min(limit, round(1.6 * n ** 0.56))`` of fastai's tabular models.
    """
    return max(1, min(limit, round(1.6 * math.pow(cardinality, 0.56))))
